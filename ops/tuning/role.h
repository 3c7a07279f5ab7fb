/// The registry: what kernels there are for a role, each an entry of plain data, and the one mechanism that chooses
/// among them.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/status.h"
#include "fusedsc/runtime/implementation.h"
#include "fusedsc/runtime/plan.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/trace.h"

namespace fusedsc::tuning {

/// A kernel family in one role.
template <class Arguments>
struct Kernel {
  const char* name;
  /// Empty if it can run the arguments, else the reason why not: types, strides, windows, device, numerics. Never an
  /// opinion about speed.
  std::string (*unsupported)(const Arguments&);
  /// Of arguments that it supports: all configs that fit, at least one.
  Configs (*configs)(const Arguments&);
  /// The workspace and the launch, worked out but for addresses. Throws Unsupported where the config does not fit.
  Plan<Arguments> (*plan)(const Arguments&, const Config&, int threads);
};

/// What is taken for some arguments.
template <class Arguments>
struct Choice {
  const Kernel<Arguments>* kernel = nullptr;
  Config config;

  explicit operator bool() const { return kernel != nullptr; }
};

template <class Arguments>
struct Role {
  const char* name;  ///< as "depthwise_conv2d.forward"
  std::span<const Kernel<Arguments>> (*kernels)();
  /// The opinion about speed: the kernel and config that are taken where nothing is forced; none where no kernel can.
  Choice<Arguments> (*prior)(const Arguments&);
  /// Likewise, of a kernel that is given and can run the arguments; it may not fit where the prior would not take the
  /// kernel.
  Config (*prior_config)(const Kernel<Arguments>&, const Arguments&);
};

/// Of a kernel with nothing to choose about it: throws Unsupported where there is a config.
inline void check_no_config(const char* kernel, const Config& config) {
  if (config != Config()) {
    throw Unsupported(std::string(kernel) + ": there is nothing to choose about it, but its config is " +
                      printed(config));
  }
}

/// The entry of an implementation with nothing to choose about it.
template <auto kImplementation>
auto kernel_of() {
  return []<class Arguments>(const Implementation<Arguments>& implementation) {
    return Kernel<Arguments>{.name = implementation.name,
                             .unsupported = implementation.why_not,
                             .configs = [](const Arguments&) { return Configs{Config()}; },
                             .plan =
                                 [](const Arguments& arguments, const Config& config, int threads) {
                                   check_no_config(kImplementation().name, config);
                                   return kImplementation().plan_for(arguments, threads);
                                 }};
  }(kImplementation());
}

/// The first that can run the arguments, with the first of its configs.
template <class Arguments>
Choice<Arguments> first_of(std::span<const Kernel<Arguments>> kernels, const Arguments& arguments) {
  for (const Kernel<Arguments>& kernel : kernels) {
    if (kernel.unsupported(arguments).empty()) return {&kernel, kernel.configs(arguments).at(0)};
  }
  return {};
}

template <class Arguments>
std::vector<const char*> names_of(std::span<const Kernel<Arguments>> kernels) {
  std::vector<const char*> names;
  for (const Kernel<Arguments>& kernel : kernels) names.push_back(kernel.name);
  return names;
}

template <class Arguments>
const Kernel<Arguments>& kernel_named(std::span<const Kernel<Arguments>> kernels, std::string_view name) {
  return *std::find_if(kernels.begin(), kernels.end(), [&](const auto& kernel) { return kernel.name == name; });
}

/// The prior's config of a kernel that can run the arguments, or, where it does not fit, the first that does.
template <class Arguments>
Config fitting_config(const Role<Arguments>& role, const Kernel<Arguments>& kernel, const Arguments& arguments) {
  try {
    const Config config = role.prior_config(kernel, arguments);
    kernel.plan(arguments, config, 1);
    return config;
  } catch (const Unsupported&) {
    return kernel.configs(arguments).at(0);
  }
}

/// Every kernel of the role with the reason why it cannot run the arguments, a line each.
template <class Arguments>
std::string reasons(const Role<Arguments>& role, const Arguments& arguments) {
  std::string lines;
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    const std::string reason = kernel.unsupported(arguments);
    lines += std::string("\n  ") + kernel.name + ": " + (reason.empty() ? "it can" : reason);
  }
  return lines;
}

/// What is forced, or else the prior's, and why; no kernel where none can. Throws Unsupported, listing every kernel
/// with its reason, where the forced one cannot.
template <class Arguments>
std::pair<Choice<Arguments>, const char*> find(const Role<Arguments>& role, const Arguments& arguments) {
  if (const std::optional<Forced> wanted = forced(role.name)) {
    const Kernel<Arguments>& kernel = kernel_named(role.kernels(), wanted->kernel);
    const std::string reason = kernel.unsupported(arguments);
    if (!reason.empty()) {
      throw Unsupported(std::string(role.name) + ": " + kernel.name +
                        " is forced, but cannot run these arguments: " + reason + reasons(role, arguments));
    }
    return {{&kernel, wanted->config ? *wanted->config : fitting_config(role, kernel, arguments)}, "forced"};
  }
  return {role.prior(arguments), "prior"};
}

/// The plan of what is chosen, which says so when it runs. Throws Unsupported, listing every kernel with its reason,
/// where there is none.
template <class Arguments>
Plan<Arguments> plan_chosen(const Role<Arguments>& role, const Arguments& arguments, int threads) {
  const auto [choice, why] = find(role, arguments);
  if (!choice) {
    throw Unsupported(std::string(role.name) +
                      ": no implementation can run these arguments:" + reasons(role, arguments));
  }
  Plan<Arguments> plan = choice.kernel->plan(arguments, choice.config, threads);
  plan.unchecked_run = [chosen = Chosen{role.name, choice.kernel->name, choice.config, why},
                        run = std::move(plan.unchecked_run)](const Arguments& like, const Execution& execution) {
    note(chosen, like.x);
    run(like, execution);
  };
  return plan;
}

/// Every kernel: the one that is taken with its config, and why the others cannot, or that they could.
template <class Arguments>
std::vector<Candidate> candidates(const Role<Arguments>& role, const Arguments& arguments) {
  const auto [choice, why] = find(role, arguments);
  const std::string name = role.name;
  std::vector<Candidate> list;
  for (const Kernel<Arguments>& kernel : role.kernels()) {
    Candidate candidate{kernel.name, kernel.unsupported(arguments), &kernel == choice.kernel};
    candidate.direction = name.substr(name.find('.') + 1);
    if (candidate.taken) {
      candidate.config = printed(choice.config);
      candidate.why = why;
    }
    list.push_back(std::move(candidate));
  }
  return list;
}

}  // namespace fusedsc::tuning
