#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/sliding_channel_hopper.h"

#include "fusedsc/forward/pointwise_kernels.h"
#include "fusedsc/forward/sliding_channel_pointwise.h"

namespace fusedsc {
namespace {

PointwiseArguments pointwise_of(const SlidingChannelArguments& a) {
  return pointwise_of(a, a.weight, sliding_channels_of(a));
}

std::string why_not(const SlidingChannelArguments& a) { return gpu::hopper::why_not_nhwc(pointwise_of(a)); }

Plan<SlidingChannelArguments> plan_forward(const SlidingChannelArguments& a, int /*threads*/) {
  const Plan<PointwiseArguments> plan = gpu::hopper::plan_nhwc(pointwise_of(a));
  return {plan.workspace_bytes,
          [run = plan.unchecked_run](const SlidingChannelArguments& like, const Execution& execution) {
            run(pointwise_of(like), execution);
          }};
}

}  // namespace

Implementation<SlidingChannelArguments> sliding_channel_hopper() { return {"gpu_hopper", why_not, plan_forward}; }

}  // namespace fusedsc
#endif
