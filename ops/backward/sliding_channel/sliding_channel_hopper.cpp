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
  return pointwise_backward_hopper().unsupported(pointwise_of(a));
}

tuning::Configs configs(const SlidingChannelBackwardArguments& a) {
  return pointwise_backward_hopper().configs(pointwise_of(a));
}

Plan<SlidingChannelBackwardArguments> plan_backward(const SlidingChannelBackwardArguments& a,
                                                    const tuning::Config& config, int threads) {
  const Plan<PointwiseBackwardArguments> plan = pointwise_backward_hopper().plan(pointwise_of(a), config, threads);
  return {plan.workspace_bytes,
          [run = plan.unchecked_run](const SlidingChannelBackwardArguments& like, const Execution& execution) {
            run(pointwise_of(like), execution);
          }};
}

}  // namespace

tuning::Kernel<SlidingChannelBackwardArguments> sliding_channel_backward_hopper() {
  return {"hopper", why_not, configs, plan_backward};
}

tuning::Config sliding_channel_backward_hopper_prior(const SlidingChannelBackwardArguments& a) {
  return pointwise_backward_hopper_prior(pointwise_of(a));
}

}  // namespace fusedsc
#endif
