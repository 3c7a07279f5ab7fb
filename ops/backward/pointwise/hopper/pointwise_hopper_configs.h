/// Configs of entries of the registry that have launches of several families (pointwise_launches.h).
#pragma once

#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"

namespace fusedsc::gpu::hopper {

/// With what says which family it is of: where a block keeps its weight, no groups share k; tiles of whole rows are
/// segments.
inline tuning::Config with_family(tuning::Config config, PointwiseFamily family) {
  if (family != PointwiseFamily::sliced_k) config[tuning::Knob::groups] = 0;
  config[tuning::Knob::segments] = family == PointwiseFamily::rows ? 1 : 0;
  return config;
}
inline PointwiseFamily family_of(const tuning::Config& config) {
  if (config[tuning::Knob::segments] != 0) return PointwiseFamily::rows;
  return config[tuning::Knob::groups] == 0 ? PointwiseFamily::resident : PointwiseFamily::sliced_k;
}
inline tuning::Config without_family(tuning::Config config) {
  config[tuning::Knob::segments] = 0;
  if (config[tuning::Knob::groups] == 0) config[tuning::Knob::groups] = 1;
  return config;
}

/// Those of all families.
template <class Instances, class Product>
tuning::Configs configs_of_all(const Instances& instances, const Product& product) {
  tuning::Configs configs;
  for (const PointwiseFamily family : {PointwiseFamily::resident, PointwiseFamily::sliced_k, PointwiseFamily::rows}) {
    for (const tuning::Config& config : configs_of(instances, product, family)) {
      configs.push_back(with_family(config, family));
    }
  }
  return configs;
}

}  // namespace fusedsc::gpu::hopper
