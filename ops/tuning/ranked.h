/// A role's kernels in the order in which its prior tries them, for priors that take the first that can and suits.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/role.h"

namespace fusedsc::tuning {

template <class Arguments>
struct Ranked {
  Kernel<Arguments> kernel;
  /// Of arguments that it can run: whether the prior takes it; null: always.
  bool (*suits)(const Arguments&) = nullptr;
  /// Likewise: the config that it is taken with; null: nothing is to be chosen about it.
  Config (*config)(const Arguments&) = nullptr;

  Config config_of(const Arguments& arguments) const { return config != nullptr ? config(arguments) : Config(); }
};

template <class Arguments>
std::vector<Kernel<Arguments>> kernels_of(std::span<const Ranked<Arguments>> ranked) {
  std::vector<Kernel<Arguments>> kernels;
  for (const Ranked<Arguments>& one : ranked) kernels.push_back(one.kernel);
  return kernels;
}

/// The prior. `kernels`: kernels_of(ranked).
template <class Arguments>
Choice<Arguments> first_that_suits(std::span<const Ranked<Arguments>> ranked,
                                   std::span<const Kernel<Arguments>> kernels, const Arguments& arguments) {
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    const Ranked<Arguments>& one = ranked[i];
    if (!one.kernel.unsupported(arguments).empty()) continue;
    if (one.suits == nullptr || one.suits(arguments)) return {&kernels[i], one.config_of(arguments)};
  }
  return {};
}

/// The prior's config of one of them.
template <class Arguments>
Config ranked_config(std::span<const Ranked<Arguments>> ranked, const Kernel<Arguments>& kernel,
                     const Arguments& arguments) {
  for (const Ranked<Arguments>& one : ranked) {
    if (one.kernel.name == std::string_view(kernel.name)) return one.config_of(arguments);
  }
  return {};
}

}  // namespace fusedsc::tuning
