#include "ops/forward_case.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

class SlidingChannel : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, SlidingChannel, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(SlidingChannel, Edges) {
  for_each_case(forward_edge_cases(GetParam(), sliding_channel_edges()), verify_forward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannel, Fusion) {
  const SlidingChannelGeometry odd{{2, 35, 6, 7}, 24, 2, 0.5}, even{{2, 24, 6, 7}, 36, 3, 0.25};
  for_each_case(forward_fusion_cases(GetParam(), odd, even), verify_forward<SlidingChannelGeometry>);
}

TEST_P(SlidingChannel, Random) {
  for_each_case(forward_random_cases(GetParam(), random_sliding_channel), verify_forward<SlidingChannelGeometry>);
}

}  // namespace
}  // namespace fusedsc::reference
