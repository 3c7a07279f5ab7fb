#include "ops/backward_case.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

class SlidingChannelBackward : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, SlidingChannelBackward, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SlidingChannelBackward, Edges) {
  for_each_case(backward_edge_cases(GetParam(), sliding_channel_edges()), verify_backward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannelBackward, Fusion) {
  const SlidingChannelGeometry odd{{2, 35, 6, 7}, 24, 2, 0.5}, even{{2, 24, 6, 7}, 36, 3, 0.25};
  for_each_case(backward_fusion_cases(GetParam(), odd, even), verify_backward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannelBackward, Random) {
  for_each_case(backward_random_cases(GetParam(), random_sliding_channel), verify_backward<SlidingChannelGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
