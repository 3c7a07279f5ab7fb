#include "fusedsc/forward/sliding_channel.h"

#include "fusedsc/common/convolution_checks.h"
#include "fusedsc/forward/sliding_channel_composed.h"
#include "fusedsc/forward/sliding_channel_cpu.h"
#include "fusedsc/forward/sliding_channel_hopper.h"
#include "fusedsc/forward/sliding_channel_planes.h"
#include "fusedsc/forward/sliding_channel_windows.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<SlidingChannelArguments>> implementations() {
  static const Implementation<SlidingChannelArguments> list[] = {
      sliding_channel_cpu(),
#ifdef FUSEDSC_HOPPER
      sliding_channel_windows(),  sliding_channel_hopper(), sliding_channel_tf32_planes(),
#endif
      sliding_channel_composed(),
  };
  return list;
}

void check_problem(const SlidingChannelArguments& a) {
  check_forward(a, sliding_channel_output_sizes(a.x.sizes, a.weight.sizes, a.groups, a.overlap));
}

void check_memory(const SlidingChannelArguments& arguments) {
  check_forward_memory(arguments);
  check_given({"y", arguments.y});
}

constexpr Operator<SlidingChannelArguments> kOperator{
    .name = "sliding_channel_conv2d",
    .implementations = implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty_forward<SlidingChannelArguments>,
    .clear_results = clear_statistics_of<SlidingChannelArguments>,
    .finish = normalise_statistics_of<SlidingChannelArguments>,
};

}  // namespace

Sizes sliding_channel_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups, double overlap) {
  check(x[1] > 0, "x: it has ", x[1], " channels; a sliding-channel convolution needs at least 1");
  check(weight[0] > 0, "weight: it has ", weight[0], " output channels; it must have at least 1");
  const SlidingChannels windows(x[1], weight[0], groups, overlap);
  check(weight[1] == windows.width && weight[2] == 1 && weight[3] == 1, "weight: its sizes are ", printed(weight),
        ", but must be ", printed({weight[0], windows.width, 1, 1}), ", for the ", x[1], " channels of x in ", groups,
        " groups");
  return {x[0], weight[0], x[2], x[3]};
}

void sliding_channel_conv2d(const SlidingChannelArguments& arguments, const Execution& execution) {
  run(kOperator, arguments, execution);
}

std::size_t sliding_channel_conv2d_workspace_bytes(const SlidingChannelArguments& arguments, int threads) {
  return plan(kOperator, arguments, threads).workspace_bytes;
}

Plan<SlidingChannelArguments> plan_sliding_channel_conv2d(const SlidingChannelArguments& arguments, int threads) {
  return plan(kOperator, arguments, threads);
}

std::vector<Candidate> explain_sliding_channel_conv2d(const SlidingChannelArguments& arguments) {
  return explain(kOperator, arguments);
}

}  // namespace fusedsc
