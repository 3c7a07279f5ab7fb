#include "fusedsc/backward/pointwise.h"

#include "fusedsc/backward/members.h"
#include "fusedsc/backward/pointwise/cpu/pointwise_cpu.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/checks/convolution_checks.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"

namespace fusedsc {
namespace {

using Kernel = tuning::Kernel<PointwiseBackwardArguments>;
using Ranked = tuning::Ranked<PointwiseBackwardArguments>;

#ifdef FUSEDSC_GPU
bool never(const PointwiseBackwardArguments& /*a*/) { return false; }
#endif

const Ranked kRanked[] = {
#ifdef FUSEDSC_GPU
    {tuning::kernel_of<pointwise_backward_skinny>(), suits_pointwise_skinny},
#endif
#ifdef FUSEDSC_HOPPER
    {tuning::kernel_of<pointwise_backward_hopper_n_resident>(), suits_pointwise_n_resident},
    {tuning::kernel_of<pointwise_backward_hopper_k_resident>(), suits_pointwise_k_resident},
    {tuning::kernel_of<pointwise_backward_hopper_prologue_pass>()},
#endif
#ifdef FUSEDSC_GPU
    {pointwise_backward_separate()},
#endif
#ifdef FUSEDSC_HOPPER
    {tuning::kernel_of<pointwise_backward_hopper_transposing>(), suits_pointwise_transposing},
    {pointwise_backward_hopper_narrow(), suits_pointwise_narrow, pointwise_backward_hopper_narrow_prior},
    {pointwise_backward_hopper_warp_sliced_k(), nullptr, pointwise_backward_hopper_warp_sliced_k_prior},
    {pointwise_backward_hopper(), nullptr, pointwise_backward_hopper_prior},
    {pointwise_backward_hopper_planes(), nullptr, pointwise_backward_hopper_planes_prior},
#endif
#ifdef FUSEDSC_GPU
    {pointwise_backward_fragments(), nullptr, pointwise_backward_fragments_prior},
    {pointwise_backward_tiles(), nullptr, pointwise_backward_tiles_prior},
    {pointwise_backward_generated(), never},
#endif
    {pointwise_backward_cpu(), nullptr, pointwise_backward_cpu_prior},
};

tuning::Choice<PointwiseBackwardArguments> prior(const PointwiseBackwardArguments& a) {
  return tuning::first_that_suits(std::span<const Ranked>(kRanked), pointwise_backward_kernels(), a);
}

tuning::Config prior_config(const Kernel& kernel, const PointwiseBackwardArguments& a) {
  return tuning::ranked_config(std::span<const Ranked>(kRanked), kernel, a);
}

using Role = tuning::Role<PointwiseBackwardArguments>;

constexpr Role kBoth{"pointwise_conv2d.backward", pointwise_backward_kernels, prior, prior_config};
constexpr Role kInput{"pointwise_conv2d.grad_input", pointwise_backward_kernels, prior, prior_config};
constexpr Role kWeight{"pointwise_conv2d.grad_weight", pointwise_backward_kernels, prior, prior_config};

std::vector<const char*> names() { return tuning::names_of(pointwise_backward_kernels()); }

const tuning::RoleRegistration kRegistered[] = {{kBoth.name, names}, {kInput.name, names}, {kWeight.name, names}};

void check_problem(const PointwiseBackwardArguments& arguments) {
  check_backward(arguments, pointwise_output_sizes(arguments.x.sizes, arguments.weight.sizes, arguments.groups));
}

constexpr Operator<PointwiseBackwardArguments> kOperator{
    .name = "pointwise_conv2d_backward",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_backward_memory<PointwiseBackwardArguments>,
    .is_empty = is_empty_backward<PointwiseBackwardArguments>,
    .clear_results = clear_sums_of<PointwiseBackwardArguments>,
    .finish = normalise_sums_of<PointwiseBackwardArguments>,
    .plan = [](const PointwiseBackwardArguments& a, int threads) { return tuning::plan_chosen(kBoth, a, threads); },
    .candidates = [](const PointwiseBackwardArguments& a,
                     int threads) { return tuning::candidates(kBoth, a, threads); },
};

}  // namespace

#ifdef FUSEDSC_HOPPER
Plan<PointwiseBackwardArguments> plan_behind_prologue(const PointwiseBackwardArguments& a, int threads) {
  if (!wants_both(a)) return tuning::plan_chosen(a.grad_x ? kInput : kWeight, a, threads);
  const auto in_one_pass = pointwise_backward_hopper_k_resident();
  return in_one_pass.why_not(a).empty() && suits_pointwise_k_resident(a)
             ? in_one_pass.plan_for(a, threads)
             : pointwise_backward_separate().plan(a, {}, threads);
}
#endif

#ifdef FUSEDSC_GPU
Kernel pointwise_backward_separate() {
  return {
      .name = "gpu_separate",  // and where no gradient is wanted
      .unsupported = [](const PointwiseBackwardArguments& a) -> std::string {
        if (wants_both(a)) return pointwise_backward_tiles().unsupported(without_weight(a));
        return a.grad_x || wants_weight(a) ? "it is for both gradients" : needs_device(Device::gpu, a.x.device);
      },
      .configs = [](const PointwiseBackwardArguments&) { return tuning::Configs{tuning::Config()}; },
      .plan = [](const PointwiseBackwardArguments& a, const tuning::Config& config,
                 int threads) -> Plan<PointwiseBackwardArguments> {
        tuning::check_no_config("gpu_separate", config);
        if (!a.grad_x) return {0, [](const PointwiseBackwardArguments&, const Execution&) {}};
        return one_after_other(tuning::plan_chosen(kInput, without_weight(a), threads),
                               tuning::plan_chosen(kWeight, without_input(a), threads));
      },
  };
}
#endif

std::span<const Kernel> pointwise_backward_kernels() {
  static const std::vector<Kernel> kernels = tuning::kernels_of(std::span<const Ranked>(kRanked));
  return kernels;
}

Plan<PointwiseBackwardArguments> plan_pointwise_weight_gradient(const PointwiseBackwardArguments& a, int threads) {
  return tuning::plan_chosen(kWeight, a, threads);
}

FUSEDSC_CHOOSING_OPERATOR(pointwise_conv2d_backward, PointwiseBackwardArguments, kOperator)

}  // namespace fusedsc
