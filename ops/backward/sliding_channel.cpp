#include "fusedsc/backward/sliding_channel.h"

#include "fusedsc/backward/members.h"
#include "fusedsc/backward/sliding_channel/cpu/sliding_channel_cpu.h"
#include "fusedsc/backward/sliding_channel/sliding_channel_composed.h"
#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/common/checks/convolution_checks.h"
#include "fusedsc/forward/sliding_channel/cpu/sliding_channel_cpu.h"
#include "fusedsc/runtime/operator.h"
#include "fusedsc/tuning/ranked.h"

namespace fusedsc {
namespace {

using Kernel = tuning::Kernel<SlidingChannelBackwardArguments>;
using Ranked = tuning::Ranked<SlidingChannelBackwardArguments>;

bool suits_cpu(const SlidingChannelBackwardArguments& a) {
  return suits_sliding_channel_cpu(sliding_channels_of(a), a.weight.sizes[0]);
}

const Ranked kRanked[] = {
    {sliding_channel_backward_cpu(), suits_cpu, sliding_channel_backward_cpu_prior},
#ifdef FUSEDSC_HOPPER
    {gpu::hopper::sliding_channel_backward_windows(), gpu::hopper::suits_sliding_channel_backward_windows,
     gpu::hopper::sliding_channel_backward_windows_prior},
    {sliding_channel_backward_hopper(), nullptr, sliding_channel_backward_hopper_prior},
    {tuning::kernel_of<sliding_channel_backward_tf32_planes>()},
#endif
    {tuning::kernel_of<sliding_channel_backward_composed>()},
};

tuning::Choice<SlidingChannelBackwardArguments> prior(const SlidingChannelBackwardArguments& a) {
  return tuning::first_that_suits(std::span<const Ranked>(kRanked), sliding_channel_backward_kernels(), a);
}

tuning::Config prior_config(const Kernel& kernel, const SlidingChannelBackwardArguments& a) {
  return tuning::ranked_config(std::span<const Ranked>(kRanked), kernel, a);
}

constexpr tuning::Role<SlidingChannelBackwardArguments> kRole{"sliding_channel_conv2d.backward",
                                                              sliding_channel_backward_kernels, prior, prior_config};
const tuning::RoleRegistration kRegistered(kRole.name,
                                           [] { return tuning::names_of(sliding_channel_backward_kernels()); });

void check_problem(const SlidingChannelBackwardArguments& a) {
  check_backward(a, sliding_channel_output_sizes(a.x.sizes, a.weight.sizes, a.groups, a.overlap));
}

constexpr Operator<SlidingChannelBackwardArguments> kOperator{
    .name = "sliding_channel_conv2d_backward",
    .implementations = nullptr,
    .check_problem = check_problem,
    .check_memory = check_backward_memory<SlidingChannelBackwardArguments>,
    .is_empty = is_empty_backward<SlidingChannelBackwardArguments>,
    .clear_results = clear_sums_of<SlidingChannelBackwardArguments>,
    .finish = normalise_sums_of<SlidingChannelBackwardArguments>,
    .plan = [](const SlidingChannelBackwardArguments& a,
               int threads) { return tuning::plan_chosen(kRole, a, threads); },
    .candidates = [](const SlidingChannelBackwardArguments& a,
                     int threads) { return tuning::candidates(kRole, a, threads); },
};

}  // namespace

std::span<const Kernel> sliding_channel_backward_kernels() {
  static const std::vector<Kernel> kernels = tuning::kernels_of(std::span<const Ranked>(kRanked));
  return kernels;
}

FUSEDSC_CHOOSING_OPERATOR(sliding_channel_conv2d_backward, SlidingChannelBackwardArguments, kOperator)

}  // namespace fusedsc
