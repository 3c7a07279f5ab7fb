#ifdef FUSEDSC_HOPPER
#include <utility>

#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_pointwise.h"

namespace fusedsc::gpu::hopper {
namespace {

PointwiseArguments pointwise_of(const SlidingChannelArguments& a) {
  return fusedsc::pointwise_of(a, a.weight, sliding_channels_of(a));
}

/// The entry of a pointwise kernel that lays the weight out.
template <Kernel<PointwiseArguments> (*kKernel)()>
Kernel<SlidingChannelArguments> by_pointwise() {
  return {
      .name = kKernel().name,
      .unsupported = [](const SlidingChannelArguments& a) { return kKernel().unsupported(pointwise_of(a)); },
      .configs = [](const SlidingChannelArguments& a) { return kKernel().configs(pointwise_of(a)); },
      .plan = [](const SlidingChannelArguments& a, const Config& config, int threads) -> Plan<SlidingChannelArguments> {
        Plan<PointwiseArguments> plan = kKernel().plan(pointwise_of(a), config, threads);
        return {plan.workspace_bytes,
                [run = std::move(plan.unchecked_run)](const SlidingChannelArguments& like, const Execution& execution) {
                  run(pointwise_of(like), execution);
                }};
      }};
}

}  // namespace

Kernel<SlidingChannelArguments> sliding_channel_resident() { return by_pointwise<pointwise_resident>(); }
Kernel<SlidingChannelArguments> sliding_channel_sliced_k() { return by_pointwise<pointwise_sliced_k>(); }
Kernel<SlidingChannelArguments> sliding_channel_rows() { return by_pointwise<pointwise_rows>(); }

Config sliding_channel_resident_prior(const SlidingChannelArguments& a) {
  return pointwise_resident_prior(pointwise_of(a));
}
Config sliding_channel_sliced_k_prior(const SlidingChannelArguments& a) {
  return pointwise_sliced_k_prior(pointwise_of(a));
}
Config sliding_channel_rows_prior(const SlidingChannelArguments& a) { return pointwise_rows_prior(pointwise_of(a)); }

NamedChoice sliding_channel_nhwc_prior(const SlidingChannelArguments& a) {
  return pointwise_nhwc_prior(pointwise_of(a));
}

}  // namespace fusedsc::gpu::hopper
#endif
