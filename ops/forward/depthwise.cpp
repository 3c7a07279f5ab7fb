#include "fusedsc/forward/depthwise.h"

#include "fusedsc/common/checks/convolution_checks.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_cpu.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_planes_cpu.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/forward/plan_recomputed.h"
#include "fusedsc/forward/recomputed.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"
#ifdef FUSEDSC_GPU
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#endif

namespace fusedsc {
namespace {

using Kernel = tuning::Kernel<DepthwiseArguments>;
using Ranked = tuning::Ranked<DepthwiseArguments>;

const Ranked kCpu[] = {{depthwise_planes_cpu(), nullptr, depthwise_planes_cpu_prior},
                       {depthwise_cpu(), nullptr, depthwise_cpu_prior}};

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
#ifdef FUSEDSC_GPU
    const std::span<const Kernel> gpu = gpu::depthwise_gpu_kernels();
    list.assign(gpu.begin(), gpu.end());
#endif
    for (const Ranked& one : kCpu) list.push_back(one.kernel);
    return list;
  }();
  return all;
}

tuning::Choice<DepthwiseArguments> prior(const DepthwiseArguments& arguments) {
#ifdef FUSEDSC_GPU
  if (const auto choice = gpu::depthwise_prior(kernels(), arguments)) return choice;
#endif
  return tuning::first_that_suits(std::span<const Ranked>(kCpu), kernels().last(std::size(kCpu)), arguments);
}

tuning::Config prior_config(const Kernel& kernel, const DepthwiseArguments& a) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::depthwise_prior_config(kernel, a);
#endif
  return tuning::ranked_config(std::span<const Ranked>(kCpu), kernel, a);
}

constexpr tuning::Role<DepthwiseArguments> kRole{"depthwise_conv2d.forward", kernels, prior, prior_config};
const tuning::RoleRegistration kRegistered(kRole.name, [] { return tuning::names_of(kernels()); });

void check_problem(const DepthwiseArguments& arguments) {
  check_forward(arguments, depthwise_output_sizes(arguments.x.sizes, arguments.weight.sizes, arguments.window));
}

void check_memory(const DepthwiseArguments& arguments) {
  check_forward_memory(arguments);
  check(arguments.y || arguments.statistics || arguments.y.elements() == 0,
        "y: its data is null, which is for statistics alone; pass memory, or statistics");
}

constexpr Operator<DepthwiseArguments> kOperator{
    .name = "depthwise_conv2d",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty_forward<DepthwiseArguments>,
    .clear_results = clear_statistics_of<DepthwiseArguments>,
    .finish = normalise_statistics_of<DepthwiseArguments>,
    .plan = [](const DepthwiseArguments& a, int threads) { return tuning::plan_chosen(kRole, a, threads); },
    .candidates = [](const DepthwiseArguments& a, int threads) { return tuning::candidates(kRole, a, threads); },
};

}  // namespace

Sizes depthwise_output_sizes(const Sizes& x, const Sizes& weight, const Window& window) {
  check(weight[1] == 1, "weight: its sizes are ", printed(weight),
        "; a depthwise weight is [C*m, 1, Kh, Kw], its second size 1");
  check(x[1] == 0 ? weight[0] == 0 : weight[0] > 0 && weight[0] % x[1] == 0, "weight: it has ", weight[0],
        " output channels, which must be a whole multiple of the ", x[1], " channels of x");
  check(window.kernel[0] == weight[2] && window.kernel[1] == weight[3], "window: its kernel is ", window.kernel[0],
        " x ", window.kernel[1], ", but must be ", weight[2], " x ", weight[3], ", the last two sizes of weight");
  return {x[0], weight[0], window.output_height(x[2]), window.output_width(x[3])};
}

FUSEDSC_CHOOSING_OPERATOR(depthwise_conv2d, DepthwiseArguments, kOperator)

Plan<DepthwiseArguments> plan_recomputed(const DepthwiseArguments& arguments, const DepthwiseArguments& first,
                                         int threads) {
  return plan(kOperator, arguments, threads, [&] { return tuning::plan_recomputed(kRole, arguments, first, threads); });
}

}  // namespace fusedsc
