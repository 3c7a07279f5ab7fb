#include "fusedsc/backward/sliding_channel/sliding_channel_composed.h"

#include "fusedsc/backward/sliding_channel/sliding_channel_pointwise.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

struct ComposedBackward {
  const SlidingChannelBackwardArguments& arguments;
  Arena arena;
  SlidingChannels windows;
  TensorView weight;
  PointwiseBackwardArguments pointwise;

  ComposedBackward(const SlidingChannelBackwardArguments& arguments_, void* workspace)
      : arguments(arguments_),
        arena(workspace),
        windows(sliding_channels_of(arguments)),
        weight(take_expanded_weight(arena, arguments.weight, windows)),
        pointwise(pointwise_of(
            arguments, weight,
            arguments.grad_weight ? take_expanded_weight(arena, arguments.weight, windows) : TensorView{})) {}

  struct Plans {
    Plan<PointwiseBackwardArguments> pointwise;

    std::size_t workspace_bytes() const { return pointwise.workspace_bytes; }
  };

  Plans plan(int threads) const { return {plan_pointwise_conv2d_backward(pointwise, threads)}; }

  void run(const Plans& plans, const Execution& execution) const {
    expand_sliding_channels(windows, arguments.weight, weight, execution);
    plans.pointwise.run(pointwise, rest_of(execution, arena));
    if (arguments.grad_weight) {
      gather_sliding_channels(windows, pointwise.grad_weight, arguments.grad_weight, execution);
    }
  }
};

}  // namespace

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_composed() {
  return composed<ComposedBackward, SlidingChannelBackwardArguments>(
      [](const SlidingChannelBackwardArguments&) { return std::string(); });
}

}  // namespace fusedsc
