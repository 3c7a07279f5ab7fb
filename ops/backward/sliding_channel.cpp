#include "fusedsc/backward/sliding_channel.h"

#include "fusedsc/backward/sliding_channel_composed.h"
#include "fusedsc/backward/sliding_channel_cpu.h"
#include "fusedsc/backward/sliding_channel_hopper.h"
#include "fusedsc/backward/sliding_channel_planes.h"
#include "fusedsc/backward/sliding_channel_windows.h"
#include "fusedsc/common/convolution_checks.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<SlidingChannelBackwardArguments>> implementations() {
  static const Implementation<SlidingChannelBackwardArguments> list[] = {
      sliding_channel_backward_cpu(),
#ifdef FUSEDSC_HOPPER
      sliding_channel_backward_windows(),  sliding_channel_backward_hopper(), sliding_channel_backward_tf32_planes(),
#endif
      sliding_channel_backward_composed(),
  };
  return list;
}

void check_problem(const SlidingChannelBackwardArguments& a) {
  check_backward(a, sliding_channel_output_sizes(a.x.sizes, a.weight.sizes, a.groups, a.overlap));
}

constexpr Operator<SlidingChannelBackwardArguments> kOperator{
    .name = "sliding_channel_conv2d_backward",
    .implementations = implementations,
    .check_problem = check_problem,
    .check_memory = check_backward_memory<SlidingChannelBackwardArguments>,
    .is_empty = is_empty_backward<SlidingChannelBackwardArguments>,
    .clear_results = clear_sums_of<SlidingChannelBackwardArguments>,
    .finish = normalise_sums_of<SlidingChannelBackwardArguments>,
};

}  // namespace

void sliding_channel_conv2d_backward(const SlidingChannelBackwardArguments& arguments, const Execution& execution) {
  run(kOperator, arguments, execution);
}

std::size_t sliding_channel_conv2d_backward_workspace_bytes(const SlidingChannelBackwardArguments& arguments,
                                                            int threads) {
  return plan(kOperator, arguments, threads).workspace_bytes;
}

Plan<SlidingChannelBackwardArguments> plan_sliding_channel_conv2d_backward(
    const SlidingChannelBackwardArguments& arguments, int threads) {
  return plan(kOperator, arguments, threads);
}

std::vector<Candidate> explain_sliding_channel_conv2d_backward(const SlidingChannelBackwardArguments& arguments) {
  return explain(kOperator, arguments);
}

}  // namespace fusedsc
