#include "fusedsc/forward/sliding_channel/sliding_channel_composed.h"

#include "fusedsc/forward/sliding_channel/sliding_channel_pointwise.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

struct ComposedForward {
  const SlidingChannelArguments& arguments;
  Arena arena;
  SlidingChannels windows;
  TensorView weight;
  PointwiseArguments pointwise;

  ComposedForward(const SlidingChannelArguments& arguments_, void* workspace)
      : arguments(arguments_),
        arena(workspace),
        windows(sliding_channels_of(arguments)),
        weight(take_expanded_weight(arena, arguments.weight, windows)),
        pointwise(pointwise_of(arguments, weight)) {}

  struct Plans {
    Plan<PointwiseArguments> pointwise;

    std::size_t workspace_bytes() const { return pointwise.workspace_bytes; }
  };

  Plans plan(int threads) const { return {plan_pointwise_conv2d(pointwise, threads)}; }

  void run(const Plans& plans, const Execution& execution) const {
    expand_sliding_channels(windows, arguments.weight, weight, execution);
    plans.pointwise.run(pointwise, rest_of(execution, arena));
  }
};

}  // namespace

Implementation<SlidingChannelArguments> sliding_channel_composed() {
  return composed<ComposedForward, SlidingChannelArguments>(
      [](const SlidingChannelArguments&) { return std::string(); });
}

}  // namespace fusedsc
