#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/backward/sliding_channel/sliding_channel_pointwise.h"

namespace fusedsc {
namespace {

PointwiseBackwardArguments pointwise_of(const SlidingChannelBackwardArguments& a) {
  return pointwise_of(a, a.weight, a.grad_weight, sliding_channels_of(a));
}

std::string why_not(const SlidingChannelBackwardArguments& a) {
  return pointwise_backward_hopper().why_not(pointwise_of(a));
}

Plan<SlidingChannelBackwardArguments> plan_backward(const SlidingChannelBackwardArguments& a, int threads) {
  const Plan<PointwiseBackwardArguments> plan = pointwise_backward_hopper().plan_for(pointwise_of(a), threads);
  return {plan.workspace_bytes,
          [run = plan.unchecked_run](const SlidingChannelBackwardArguments& like, const Execution& execution) {
            run(pointwise_of(like), execution);
          }};
}

}  // namespace

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_hopper() {
  return {"hopper", why_not, plan_backward};
}

}  // namespace fusedsc
#endif
