#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {
namespace {

class Depthwise : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, Depthwise, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Depthwise, Edges) {
  for_each_case(forward_edge_cases(GetParam(), depthwise_edges()), verify_forward<DepthwiseGeometry>);
}

TEST_P(Depthwise, Seams) {
  const DepthwiseGeometry stride_one{{2, 19, 8, 13}, centered(3)}, multiplied{{2, 19, 8, 13}, centered(3, 2), 2};
  for_each_case(forward_seam_cases(GetParam(), stride_one, multiplied), verify_forward<DepthwiseGeometry>);
}

TEST_P(Depthwise, Random) {
  for_each_case(forward_random_cases(GetParam(), random_depthwise), verify_forward<DepthwiseGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
