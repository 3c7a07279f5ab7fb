/// A role's kernels in the order in which its prior tries them, for priors that take the first that can and suits.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fusedsc/tuning/role.h"

namespace fusedsc::tuning {

template <class ArgumentsOf>
struct Ranked {
  using Arguments = ArgumentsOf;

  Kernel<Arguments> kernel;
  /// Of arguments that it can run: whether the prior takes it; null: always.
  bool (*suits)(const Arguments&) = nullptr;
  /// Likewise: the config that it is taken with; null: nothing is to be chosen about it.
  Config (*config)(const Arguments&) = nullptr;
  /// In place of `suits`, where that is seen from the config, which is then not worked out a second time: `config`, or
  /// none where the prior does not take it.
  std::optional<Config> (*suiting_config)(const Arguments&) = nullptr;

  /// None: the prior does not take it.
  std::optional<Config> taken_with(const Arguments& arguments) const {
    if (suiting_config != nullptr) return suiting_config(arguments);
    if (suits != nullptr && !suits(arguments)) return {};
    return config_of(arguments);
  }
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
    if (const auto config = one.taken_with(arguments)) return {&kernels[i], *config};
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

/// Of a list that is there as long as the program: what a role with such a prior is made of.
template <const auto& kList>
struct RankedRole {
  using Arguments = typename std::remove_cvref_t<decltype(kList[0])>::Arguments;

  static std::span<const Ranked<Arguments>> list() { return kList; }
  static std::span<const Kernel<Arguments>> kernels() {
    static const std::vector<Kernel<Arguments>> all = kernels_of(list());
    return all;
  }
  static Choice<Arguments> prior(const Arguments& arguments) { return first_that_suits(list(), kernels(), arguments); }
  static Config prior_config(const Kernel<Arguments>& kernel, const Arguments& arguments) {
    return ranked_config(list(), kernel, arguments);
  }
  static std::vector<const char*> names() { return names_of(kernels()); }

  static constexpr Role<Arguments> named(const char* name) { return {name, kernels, prior, prior_config}; }
};

}  // namespace fusedsc::tuning
