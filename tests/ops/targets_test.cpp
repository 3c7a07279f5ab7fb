/// A part of the convolutions' cases on each instruction set.
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/each_target.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

class Target : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, Target, EachTarget::all(), EachTarget::name);

TEST_P(Target, Depthwise) {
  const DepthwiseGeometry first{{2, 19, 8, 13}, centered(3)}, second{{2, 19, 8, 13}, centered(3, 2), 2};
  for (const DataType dtype : kDataTypes) {
    for_some_cases(forward_edge_cases(dtype, depthwise_edges()), verify_forward<DepthwiseGeometry>);
    for_some_cases(forward_fusion_cases(dtype, first, second), verify_forward<DepthwiseGeometry>);
    for_some_cases(forward_random_cases(dtype, random_depthwise), verify_forward<DepthwiseGeometry>);
    for_some_cases(backward_edge_cases(dtype, depthwise_edges()), verify_backward<DepthwiseGeometry>);
    for_some_cases(backward_fusion_cases(dtype, first, second), verify_backward<DepthwiseGeometry>);
    for_some_cases(backward_random_cases(dtype, random_depthwise), verify_backward<DepthwiseGeometry>);
  }
}

TEST_P(Target, Pointwise) {
  const PointwiseGeometry dense{{2, 35, 6, 7}, 24}, grouped{{2, 24, 6, 7}, 36, 3};
  for (const DataType dtype : kDataTypes) {
    for_some_cases(forward_edge_cases(dtype, pointwise_edges()), verify_forward<PointwiseGeometry>);
    for_some_cases(forward_fusion_cases(dtype, dense, grouped), verify_forward<PointwiseGeometry>);
    for_some_cases(forward_random_cases(dtype, random_pointwise), verify_forward<PointwiseGeometry>);
    for_some_cases(backward_edge_cases(dtype, pointwise_edges()), verify_backward<PointwiseGeometry>);
    for_some_cases(backward_fusion_cases(dtype, dense, grouped), verify_backward<PointwiseGeometry>);
    for_some_cases(backward_random_cases(dtype, random_pointwise), verify_backward<PointwiseGeometry>);
  }
}

TEST_P(Target, SlidingChannel) {
  const SlidingChannelGeometry odd{{2, 35, 6, 7}, 24, 2, 0.5}, even{{2, 24, 6, 7}, 36, 3, 0.25};
  for (const DataType dtype : kDataTypes) {
    for_some_cases(forward_edge_cases(dtype, sliding_channel_edges()), verify_forward<SlidingChannelGeometry>);
    for_some_cases(forward_fusion_cases(dtype, odd, even), verify_forward<SlidingChannelGeometry>);
    for_some_cases(forward_random_cases(dtype, random_sliding_channel), verify_forward<SlidingChannelGeometry>);
    for_some_cases(backward_edge_cases(dtype, sliding_channel_edges()), verify_backward<SlidingChannelGeometry>);
    for_some_cases(backward_fusion_cases(dtype, odd, even), verify_backward<SlidingChannelGeometry>);
    for_some_cases(backward_random_cases(dtype, random_sliding_channel), verify_backward<SlidingChannelGeometry>);
  }
}

}  // namespace
}  // namespace fusedsc::reference
