#include "fusedsc/forward/sliding_channel.h"

#include <string_view>

#include "fusedsc/common/checks/convolution_checks.h"
#include "fusedsc/forward/members.h"
#include "fusedsc/forward/sliding_channel/cpu/sliding_channel_cpu.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_composed.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {
namespace {

using Kernel = tuning::Kernel<SlidingChannelArguments>;

#ifdef FUSEDSC_HOPPER
struct PriorConfig {
  std::string_view kernel;
  tuning::Config (*config)(const SlidingChannelArguments&);
};

constexpr PriorConfig kPriorConfigs[] = {
    {"hopper_windows", gpu::hopper::sliding_channel_windows_prior},
    {"hopper_resident", gpu::hopper::sliding_channel_resident_prior},
    {"hopper_sliced_k", gpu::hopper::sliding_channel_sliced_k_prior},
    {"hopper_rows", gpu::hopper::sliding_channel_rows_prior},
};
#endif

tuning::Config prior_config(const Kernel& kernel, const SlidingChannelArguments& a) {
#ifdef FUSEDSC_HOPPER
  for (const PriorConfig& prior : kPriorConfigs) {
    if (prior.kernel == kernel.name) return prior.config(a);
  }
#endif
  if (std::string_view(kernel.name) == "cpu_windows") return sliding_channel_cpu_prior(a);
  return {};
}

/// The first that can; but of the pointwise kernels the one whose tile costs the least.
tuning::Choice<SlidingChannelArguments> prior(const SlidingChannelArguments& a) {
  const std::span<const Kernel> kernels = sliding_channel_kernels();
#ifdef FUSEDSC_HOPPER
  if (a.x.device == Device::gpu) {
    const Kernel& windows = tuning::kernel_named(kernels, "hopper_windows");
    if (windows.unsupported(a).empty() && gpu::hopper::suits_sliding_channel_windows(a)) {
      return {&windows, prior_config(windows, a)};
    }
    const gpu::NamedChoice choice = gpu::hopper::sliding_channel_nhwc_prior(a);
    if (choice.kernel != nullptr) return {&tuning::kernel_named(kernels, choice.kernel), choice.config};
  }
#endif
  if (a.x.device == Device::cpu && suits_sliding_channel_cpu(sliding_channels_of(a), a.weight.sizes[0])) {
    return {&kernels.front(), sliding_channel_cpu_prior(a)};
  }
  return tuning::first_of(a.x.device == Device::cpu ? kernels.last(1) : kernels, a);
}

constexpr tuning::Role<SlidingChannelArguments> kRole{"sliding_channel_conv2d.forward", sliding_channel_kernels, prior,
                                                      prior_config};
const tuning::RoleRegistration kRegistered(kRole.name, [] { return tuning::names_of(sliding_channel_kernels()); });

void check_problem(const SlidingChannelArguments& a) {
  check_forward(a, sliding_channel_output_sizes(a.x.sizes, a.weight.sizes, a.groups, a.overlap));
}

void check_memory(const SlidingChannelArguments& arguments) {
  check_forward_memory(arguments);
  check_given({"y", arguments.y});
}

constexpr Operator<SlidingChannelArguments> kOperator{
    .name = "sliding_channel_conv2d",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty_forward<SlidingChannelArguments>,
    .clear_results = clear_statistics_of<SlidingChannelArguments>,
    .finish = normalise_statistics_of<SlidingChannelArguments>,
    .plan = [](const SlidingChannelArguments& a, int threads) { return tuning::plan_chosen(kRole, a, threads); },
    .candidates = [](const SlidingChannelArguments& a, int threads) { return tuning::candidates(kRole, a, threads); },
};

}  // namespace

std::span<const Kernel> sliding_channel_kernels() {
  static const Kernel list[] = {
      sliding_channel_cpu(),
#ifdef FUSEDSC_HOPPER
      gpu::hopper::sliding_channel_windows(),
      gpu::hopper::sliding_channel_resident(),
      gpu::hopper::sliding_channel_sliced_k(),
      gpu::hopper::sliding_channel_rows(),
      tuning::kernel_of<sliding_channel_tf32_planes>(),
#endif
      tuning::kernel_of<sliding_channel_composed>(),
  };
  return list;
}

Sizes sliding_channel_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups, double overlap) {
  check(x[1] > 0, "x: it has ", x[1], " channels; a sliding-channel convolution needs at least 1");
  check(weight[0] > 0, "weight: it has ", weight[0], " output channels; it must have at least 1");
  const SlidingChannels windows(x[1], weight[0], groups, overlap);
  check(weight[1] == windows.width && weight[2] == 1 && weight[3] == 1, "weight: its sizes are ", printed(weight),
        ", but must be ", printed({weight[0], windows.width, 1, 1}), ", for the ", x[1], " channels of x in ", groups,
        " groups");
  return {x[0], weight[0], x[2], x[3]};
}

FUSEDSC_CHOOSING_OPERATOR(sliding_channel_conv2d, SlidingChannelArguments, kOperator)

}  // namespace fusedsc
