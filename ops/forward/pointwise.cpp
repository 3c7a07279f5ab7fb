#include "fusedsc/forward/pointwise.h"

#include "fusedsc/common/checks/convolution_checks.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/forward/plan_recomputed.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_cpu.h"
#include "fusedsc/forward/recomputed.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"
#ifdef FUSEDSC_GPU
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#endif

namespace fusedsc {
namespace {

using Kernel = tuning::Kernel<PointwiseArguments>;
using Ranked = tuning::Ranked<PointwiseArguments>;

const Ranked kCpu[] = {{pointwise_cpu(), nullptr, pointwise_cpu_prior}};

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
#ifdef FUSEDSC_GPU
    const std::span<const Kernel> gpu = gpu::pointwise_gpu_kernels();
    list.assign(gpu.begin(), gpu.end());
#endif
    for (const Ranked& one : kCpu) list.push_back(one.kernel);
    return list;
  }();
  return all;
}

tuning::Choice<PointwiseArguments> prior(const PointwiseArguments& arguments) {
#ifdef FUSEDSC_GPU
  if (const auto choice = gpu::pointwise_prior(kernels(), arguments)) return choice;
#endif
  return tuning::first_that_suits(std::span<const Ranked>(kCpu), kernels().last(std::size(kCpu)), arguments);
}

tuning::Config prior_config(const Kernel& kernel, const PointwiseArguments& a) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::pointwise_prior_config(kernel, a);
#endif
  return tuning::ranked_config(std::span<const Ranked>(kCpu), kernel, a);
}

constexpr tuning::Role<PointwiseArguments> kRole{"pointwise_conv2d.forward", kernels, prior, prior_config};
const tuning::RoleRegistration kRegistered(kRole.name, [] { return tuning::names_of(kernels()); });

void check_problem(const PointwiseArguments& arguments) {
  check_forward(arguments, pointwise_output_sizes(arguments.x.sizes, arguments.weight.sizes, arguments.groups));
}

void check_memory(const PointwiseArguments& arguments) {
  check_forward_memory(arguments);
  check_given({"y", arguments.y});
}

constexpr Operator<PointwiseArguments> kOperator{
    .name = "pointwise_conv2d",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty_forward<PointwiseArguments>,
    .clear_results = clear_statistics_of<PointwiseArguments>,
    .finish = normalise_statistics_of<PointwiseArguments>,
    .plan = [](const PointwiseArguments& a, int threads) { return tuning::plan_chosen(kRole, a, threads); },
    .candidates = [](const PointwiseArguments& a, int threads) { return tuning::candidates(kRole, a, threads); },
};

}  // namespace

Sizes pointwise_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups) {
  check(x[1] > 0, "x: it has ", x[1], " channels; a pointwise convolution needs at least 1");
  check(weight[0] > 0, "weight: it has ", weight[0], " output channels; it must have at least 1");
  check(groups > 0, "groups: it is ", groups, "; it must be at least 1");
  check(x[1] % groups == 0, "groups: it is ", groups, ", but must divide the ", x[1], " channels of x");
  check(weight[0] % groups == 0, "groups: it is ", groups, ", but must divide the ", weight[0],
        " output channels of weight");
  check(weight[1] == x[1] / groups && weight[2] == 1 && weight[3] == 1, "weight: its sizes are ", printed(weight),
        ", but must be ", printed({weight[0], x[1] / groups, 1, 1}), ", for the ", x[1], " channels of x in ", groups,
        " groups");
  return {x[0], weight[0], x[2], x[3]};
}

FUSEDSC_CHOOSING_OPERATOR(pointwise_conv2d, PointwiseArguments, kOperator)

Plan<PointwiseArguments> plan_recomputed(const PointwiseArguments& arguments, const PointwiseArguments& first,
                                         int threads) {
  return plan(kOperator, arguments, threads, [&] { return tuning::plan_recomputed(kRole, arguments, first, threads); });
}

}  // namespace fusedsc
