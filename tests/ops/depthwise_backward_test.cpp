#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"

namespace fusedsc::reference {
namespace {

class DepthwiseBackward : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, DepthwiseBackward, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(DepthwiseBackward, Edges) {
  for_each_case(backward_edge_cases(GetParam(), depthwise_edges()), verify_backward<DepthwiseGeometry>);
}

TEST_P(DepthwiseBackward, Fusion) {
  const DepthwiseGeometry stride_one{{2, 19, 8, 13}, centered(3)}, multiplied{{2, 19, 8, 13}, centered(3, 2), 2};
  for_each_case(backward_fusion_cases(GetParam(), stride_one, multiplied), verify_backward<DepthwiseGeometry>);
}

TEST_P(DepthwiseBackward, Random) {
  for_each_case(backward_random_cases(GetParam(), random_depthwise), verify_backward<DepthwiseGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
