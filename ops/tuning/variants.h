/// Configs of kernels whose loops take any length, as the CPU's do: the prior's, and others that differ from it in a
/// word or two.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "fusedsc/common/status.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::tuning {

class Variants {
 public:
  explicit Variants(const Config& prior) : configs_{prior} {}

  /// Unless it is there already.
  void add(const Config& config) {
    if (std::find(configs_.begin(), configs_.end(), config) == configs_.end()) configs_.push_back(config);
  }
  /// The prior's with another value of one word.
  void vary(Knob knob, std::int64_t value) {
    Config config = prior();
    config[knob] = static_cast<std::int32_t>(value);
    add(config);
  }

  const Config& prior() const { return configs_.front(); }
  const Configs& configs() const { return configs_; }

 private:
  Configs configs_;
};

/// Throws Unsupported, with those there are, where a config is neither the prior's nor one of configs(arguments).
template <class Arguments>
void check_listed(const char* kernel, const Arguments& arguments, const Config& config, const Config& prior,
                  Configs (*configs)(const Arguments&)) {
  if (config == prior) return;
  std::string others;
  for (const Config& one : configs(arguments)) {
    if (one == config) return;
    others += (others.empty() ? "" : "; ") + printed(one);
  }
  throw Unsupported(std::string(kernel) + ": \"" + printed(config) + "\" is none of its configs for this problem: " +
                    others);
}

}  // namespace fusedsc::tuning
