#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/backward/sliding_channel/sliding_channel_pointwise.h"

namespace fusedsc {
namespace {

PointwiseBackwardArguments pointwise_of(const SlidingChannelBackwardArguments& a) {
  return pointwise_of(a, a.weight, a.grad_weight, sliding_channels_of(a));
}

/// Of both gradients, each by a launch of its own.
std::string why_not_each(const PointwiseBackwardArguments& a) {
  const std::string reason = pointwise_backward_hopper().unsupported(without_weight(a));
  return reason.empty() ? pointwise_backward_hopper().unsupported(without_input(a)) : reason;
}

bool in_one_pass(const PointwiseBackwardArguments& a) {
  return pointwise_backward_hopper_k_resident().why_not(a).empty() &&
         (suits_pointwise_k_resident(a) || !why_not_each(a).empty());
}

Plan<PointwiseBackwardArguments> plan_both(const PointwiseBackwardArguments& a, int threads) {
  if (in_one_pass(a)) return pointwise_backward_hopper_k_resident().plan_for(a, threads);
  if (gpu::hopper::why_not_prologue_pass(a).empty()) {
    return gpu::hopper::plan_behind_prologue_pass(a, plan_both, threads);  // of arguments without the prologue
  }
  const tuning::Kernel<PointwiseBackwardArguments> each = pointwise_backward_hopper();
  return one_after_other(each.plan(without_weight(a), {}, threads), each.plan(without_input(a), {}, threads));
}

std::string why_not(const SlidingChannelBackwardArguments& a) {
  const PointwiseBackwardArguments p = pointwise_of(a);
  if (!wants_both(p)) return pointwise_backward_hopper().unsupported(p);
  return pointwise_backward_hopper_k_resident().why_not(p).empty() ? "" : why_not_each(p);
}

tuning::Configs configs(const SlidingChannelBackwardArguments& a) {
  const PointwiseBackwardArguments p = pointwise_of(a);
  return wants_both(p) ? tuning::Configs{tuning::Config()} : pointwise_backward_hopper().configs(p);
}

Plan<PointwiseBackwardArguments> plan_pointwise(const PointwiseBackwardArguments& a, const tuning::Config& config,
                                                int threads) {
  if (!wants_both(a)) return pointwise_backward_hopper().plan(a, config, threads);
  tuning::check_no_config("hopper of both gradients", config);
  return plan_both(a, threads);
}

Plan<SlidingChannelBackwardArguments> plan_backward(const SlidingChannelBackwardArguments& a,
                                                    const tuning::Config& config, int threads) {
  const Plan<PointwiseBackwardArguments> plan = plan_pointwise(pointwise_of(a), config, threads);
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
  const PointwiseBackwardArguments p = pointwise_of(a);
  return wants_both(p) ? tuning::Config() : pointwise_backward_hopper_prior(p);
}

}  // namespace fusedsc
#endif
