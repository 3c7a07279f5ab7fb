#include "fusedsc/backward/depthwise.h"

#include "fusedsc/backward/depthwise/cpu/depthwise_cpu.h"
#include "fusedsc/backward/depthwise/cpu/depthwise_planes_cpu.h"
#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/members.h"
#include "fusedsc/common/checks/convolution_checks.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"

namespace fusedsc {
std::span<const tuning::Kernel<DepthwiseBackwardArguments>> depthwise_backward_kernels() {
  static const tuning::Kernel<DepthwiseBackwardArguments> list[] = {
#ifdef FUSEDSC_HOPPER
      gpu::hopper::depthwise_fused_gradients(),
      gpu::hopper::depthwise_planes_gradients(),
#endif
#ifdef FUSEDSC_GPU
      gpu::depthwise_separate(),
#endif
      depthwise_backward_planes_cpu(),
      depthwise_backward_cpu(),
  };
  return list;
}

namespace {

using Kernel = tuning::Kernel<DepthwiseBackwardArguments>;
using Ranked = tuning::Ranked<DepthwiseBackwardArguments>;

/// The last of depthwise_backward_kernels().
const Ranked kCpu[] = {{depthwise_backward_planes_cpu(), nullptr, depthwise_backward_planes_cpu_prior},
                       {depthwise_backward_cpu(), nullptr, depthwise_backward_cpu_prior}};

tuning::Choice<DepthwiseBackwardArguments> prior(const DepthwiseBackwardArguments& arguments) {
#ifdef FUSEDSC_GPU
  if (const auto choice = gpu::depthwise_backward_prior(depthwise_backward_kernels(), arguments)) return choice;
#endif
  return tuning::first_that_suits(std::span<const Ranked>(kCpu), depthwise_backward_kernels().last(std::size(kCpu)),
                                  arguments);
}

tuning::Config prior_config(const Kernel& kernel, const DepthwiseBackwardArguments& a) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::depthwise_backward_prior_config(kernel, a);
#endif
  return tuning::ranked_config(std::span<const Ranked>(kCpu), kernel, a);
}

constexpr tuning::Role<DepthwiseBackwardArguments> kRole{"depthwise_conv2d.backward", depthwise_backward_kernels, prior,
                                                         prior_config};
const tuning::RoleRegistration kRegistered(kRole.name, [] { return tuning::names_of(depthwise_backward_kernels()); });

std::vector<Candidate> candidates(const DepthwiseBackwardArguments& a, int threads) {
  std::vector<Candidate> all = tuning::candidates(kRole, a, threads);
#ifdef FUSEDSC_GPU
  const auto runs = [](const Candidate& one) { return one.taken && one.implementation == "gpu_separate"; };
  if (std::none_of(all.begin(), all.end(), runs)) return all;
  const auto append = [&](const tuning::Role<DepthwiseBackwardArguments>& role) {
    std::ranges::move(tuning::candidates(role, a, threads), std::back_inserter(all));
  };
  if (a.grad_x) append(gpu::depthwise_input_role());
  if (a.grad_weight || a.grad_bias) append(gpu::depthwise_weight_role());
#endif
  return all;
}

void check_problem(const DepthwiseBackwardArguments& arguments) {
  check_backward(arguments, depthwise_output_sizes(arguments.x.sizes, arguments.weight.sizes, arguments.window));
}

constexpr Operator<DepthwiseBackwardArguments> kOperator{
    .name = "depthwise_conv2d_backward",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_backward_memory<DepthwiseBackwardArguments>,
    .is_empty = is_empty_backward<DepthwiseBackwardArguments>,
    .clear_results = clear_sums_of<DepthwiseBackwardArguments>,
    .finish = normalise_sums_of<DepthwiseBackwardArguments>,
    .plan = [](const DepthwiseBackwardArguments& a, int threads) { return tuning::plan_chosen(kRole, a, threads); },
    .candidates = candidates,
};

}  // namespace

FUSEDSC_CHOOSING_OPERATOR(depthwise_conv2d_backward, DepthwiseBackwardArguments, kOperator)

}  // namespace fusedsc
