#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

class Pointwise : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, Pointwise, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Pointwise, Edges) {
  for_each_case(forward_edge_cases(GetParam(), pointwise_edges()), verify_forward<PointwiseGeometry>);
}

TEST_P(Pointwise, Fusion) {
  const PointwiseGeometry dense{{2, 35, 6, 7}, 24}, grouped{{2, 24, 6, 7}, 36, 3};
  for_each_case(forward_fusion_cases(GetParam(), dense, grouped), verify_forward<PointwiseGeometry>);
}

TEST_P(Pointwise, Random) {
  for_each_case(forward_random_cases(GetParam(), random_pointwise), verify_forward<PointwiseGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
