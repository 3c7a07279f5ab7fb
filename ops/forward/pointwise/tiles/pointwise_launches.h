/// The launches that there are for a pointwise product on a Hopper GPU, as configs of the registry.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

/// A tile's rows, channels and depth, the groups that share its k, stages, the cluster, and who transposes the weight.
/// Whatever else a launch has follows from these and the product.
template <class Launch>
tuning::Config config_of(const Launch& launch) {
  using enum tuning::Knob;
  return {{rows, launch.instance->row_tiles * kTileRows},
          {channels, launch.instance->channels},
          {depth, launch.instance->depth},
          {groups, launch.instance->k_slices},
          {stages, launch.stages},
          {cluster, launch.cluster},
          {smem_transpose, launch.smem_transposes_weight ? 1 : 0}};
}

// `for_each(instance, visit)` calls visit(launch) for each launch of an instance that fits the product.

/// The cheapest, of a family or of all; without an instance where none fits.
template <class Launch, class Instance, class ForEach>
Launch cheapest_launch(std::span<const Instance> instances, std::optional<PointwiseFamily> family,
                       const ForEach& for_each) {
  Launch best;
  for (const Instance& instance : instances) {
    if (instance.family != family.value_or(instance.family)) continue;
    for_each(instance, [&best](const Launch& launch) {
      if (launch.cost < best.cost) best = launch;
    });
  }
  return best;
}

/// Those of a family, each once.
template <class Launch, class Instance, class ForEach>
tuning::Configs launch_configs(std::span<const Instance> instances, PointwiseFamily family, const ForEach& for_each) {
  tuning::Configs configs;
  for (const Instance& instance : instances) {
    if (instance.family != family) continue;
    for_each(instance, [&configs](const Launch& launch) {
      const tuning::Config config = config_of(launch);
      if (std::find(configs.begin(), configs.end(), config) == configs.end()) configs.push_back(config);
    });
  }
  return configs;
}

/// The one that a config describes; without an instance where none fits.
template <class Launch, class Instance, class ForEach>
Launch configured_launch(std::span<const Instance> instances, PointwiseFamily family, const tuning::Config& config,
                         const ForEach& for_each) {
  using enum tuning::Knob;
  Launch found;
  for (const Instance& instance : instances) {
    const bool has_tile = instance.family == family && instance.channels == config[channels] &&
                          instance.depth == config[depth] && instance.k_slices == config[groups];
    if (!has_tile || found.instance != nullptr) continue;
    for_each(instance, [&](const Launch& launch) {
      if (found.instance == nullptr && config_of(launch) == config) found = launch;
    });
  }
  return found;
}

[[noreturn]] inline void throw_no_tile(const char* op, const char* kernel, const tuning::Config& config) {
  throw Unsupported(std::string(op) + ": " + kernel + ": there is no kernel of this problem with " +
                    tuning::printed(config));
}

}  // namespace fusedsc::gpu::hopper
