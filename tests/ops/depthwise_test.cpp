#include <algorithm>

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

TEST_P(Depthwise, Fusion) {
  const DepthwiseGeometry stride_one{{2, 19, 8, 13}, centered(3)}, multiplied{{2, 19, 8, 13}, centered(3, 2), 2};
  for_each_case(forward_fusion_cases(GetParam(), stride_one, multiplied), verify_forward<DepthwiseGeometry>);
}

TEST_P(Depthwise, Random) {
  for_each_case(forward_random_cases(GetParam(), random_depthwise), verify_forward<DepthwiseGeometry>);
}

/// Contiguous tensors are convolved in place where their rows are long enough; the list says why others are not.
TEST(Depthwise, PlanesOrTiles) {
  const auto why_not_planes = [](const Sizes& x, Memory memory) {
    const ForwardCase<DepthwiseGeometry> problem{DataType::float32, {x, centered(3)}, {}, Memories::all(memory)};
    const std::vector<Candidate> list = explain_depthwise_conv2d(ForwardTensors(problem).arguments(problem));
    const auto planes = std::ranges::find(list, "cpu_planes", &Candidate::implementation);
    return planes == list.end() ? std::string("not in the list") : planes->why_not;
  };
  EXPECT_EQ(why_not_planes({1, 3, 12, 12}, Memory::contiguous), "");
  EXPECT_EQ(why_not_planes({1, 3, 12, 12}, Memory::channels_last), "x is not contiguous");
  EXPECT_EQ(why_not_planes({1, 3, 12, 7}, Memory::contiguous), "x has rows of fewer than 10 columns");
}

}  // namespace
}  // namespace fusedsc::reference
