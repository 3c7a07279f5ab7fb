#include "ops/backward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

class PointwiseBackward : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, PointwiseBackward, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(PointwiseBackward, Edges) {
  for_each_case(backward_edge_cases(GetParam(), pointwise_edges()), verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseBackward, Fusion) {
  const PointwiseGeometry dense{{2, 35, 6, 7}, 24}, grouped{{2, 24, 6, 7}, 36, 3};
  for_each_case(backward_fusion_cases(GetParam(), dense, grouped), verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseBackward, Random) {
  for_each_case(backward_random_cases(GetParam(), random_pointwise), verify_backward<PointwiseGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
