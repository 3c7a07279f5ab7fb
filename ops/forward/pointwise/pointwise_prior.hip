// Which kernel is taken forward, and with which config, where nothing is forced, until a table of measurements takes
// its place: the costs of pointwise_hopper_cost.hip, pointwise_planes_plan.hip and pointwise_plan.hip.
#include <string_view>

#include "fusedsc/forward/pointwise/pointwise_kernels.h"

namespace fusedsc::gpu {
namespace {

NamedChoice choice_of(const PointwiseArguments& a) {
  if (pointwise_skinny().unsupported(a).empty()) return {pointwise_skinny().name, {}};
#ifdef FUSEDSC_HOPPER
  if (const NamedChoice choice = hopper::pointwise_nhwc_prior(a); choice.kernel != nullptr) return choice;
  if (const NamedChoice choice = hopper::pointwise_planes_prior(a); choice.kernel != nullptr) return choice;
#endif
  if (pointwise_fragments().unsupported(a).empty()) return {pointwise_fragments().name, pointwise_fragments_prior(a)};
  if (pointwise_tiles().unsupported(a).empty()) return {pointwise_tiles().name, pointwise_tiles_prior(a)};
  return {};
}

struct PriorConfig {
  std::string_view kernel;
  Config (*config)(const PointwiseArguments&);
};

const PriorConfig kPriorConfigs[] = {
#ifdef FUSEDSC_HOPPER
    {"hopper_resident", hopper::pointwise_resident_prior},
    {"hopper_sliced_k", hopper::pointwise_sliced_k_prior},
    {"hopper_rows", hopper::pointwise_rows_prior},
    {"hopper_planes_resident", hopper::pointwise_planes_resident_prior},
    {"hopper_planes_sliced_k", hopper::pointwise_planes_sliced_k_prior},
#endif
    {"gpu_fragments", pointwise_fragments_prior},
    {"gpu_tiles", pointwise_tiles_prior},
};

}  // namespace

std::span<const Kernel<PointwiseArguments>> pointwise_gpu_kernels() {
  static const Kernel<PointwiseArguments> list[] = {
      pointwise_skinny(),
#ifdef FUSEDSC_HOPPER
      hopper::pointwise_resident(),
      hopper::pointwise_sliced_k(),
      hopper::pointwise_rows(),
      hopper::pointwise_planes_resident(),
      hopper::pointwise_planes_sliced_k(),
#endif
      pointwise_fragments(),
      pointwise_tiles(),
      pointwise_generated(),
  };
  return list;
}

tuning::Choice<PointwiseArguments> pointwise_prior(std::span<const Kernel<PointwiseArguments>> kernels,
                                                   const PointwiseArguments& a) {
  if (a.x.device != Device::gpu) return {};
  const NamedChoice choice = choice_of(a);
  if (choice.kernel == nullptr) return {};
  return {&tuning::kernel_named(kernels, choice.kernel), choice.config};
}

Config pointwise_prior_config(const Kernel<PointwiseArguments>& kernel, const PointwiseArguments& a) {
  for (const PriorConfig& prior : kPriorConfigs) {
    if (prior.kernel == kernel.name) return prior.config(a);
  }
  return kernel.configs(a).at(0);
}

}  // namespace fusedsc::gpu
