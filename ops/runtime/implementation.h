/// Ordered lists of implementations: the first that can run an operator's arguments runs them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "fusedsc/common/status.h"
#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/plan.h"

namespace fusedsc {

template <class Arguments>
struct Implementation {
  const char* name;
  /// Empty when it can run the arguments, else the reason why not. Looks at shapes, strides, types and fusion only.
  std::string (*why_not)(const Arguments&);
  /// Everything that can be worked out without the workspace.
  Plan<Arguments> (*plan)(const Arguments&, int threads) = nullptr;
  /// In place of `plan`, where nothing is kept between the two.
  std::size_t (*workspace_bytes)(const Arguments&, int threads) = nullptr;
  void (*run)(const Arguments&, const Execution&) = nullptr;

  Plan<Arguments> plan_for(const Arguments& arguments, int threads) const {
    if (plan != nullptr) return plan(arguments, threads);
    return {workspace_bytes(arguments, threads), run};
  }
};

/// Empty if an implementation for `wanted` can run on tensors on `device`, else the reason why not.
inline std::string needs_device(Device wanted, Device device) {
  if (wanted == device) return {};
  return device == Device::gpu ? "the tensors are on a GPU" : "the tensors are on the CPU";
}

/// One line of `explain`: an implementation, and why it cannot run (empty if it can).
struct Candidate {
  std::string implementation;
  std::string why_not;
  bool taken = false;
  std::string direction = {};  ///< of kernels of the registry (tuning/role.h): their role, without the operator's name
  std::string config = {};     ///< of the one that is taken: how it cuts the problem up, in words
  std::string why = {};        ///< it is taken: "forced", "prior"
};

template <class Arguments>
std::vector<Candidate> explain(std::span<const Implementation<Arguments>> list, const Arguments& arguments) {
  std::vector<Candidate> candidates;
  bool found = false;
  for (const auto& implementation : list) {
    std::string reason = implementation.why_not(arguments);
    const bool taken = !found && reason.empty();
    found |= taken;
    candidates.push_back({implementation.name, std::move(reason), taken});
  }
  return candidates;
}

/// The first implementation that can run. Throws Unsupported, listing every entry with its reason, if there is none.
template <class Arguments>
const Implementation<Arguments>& choose(const char* op, std::span<const Implementation<Arguments>> list,
                                        const Arguments& arguments) {
  for (const auto& implementation : list) {
    if (implementation.why_not(arguments).empty()) return implementation;
  }
  std::string reasons;
  for (const Candidate& candidate : explain(list, arguments)) {
    reasons += "\n  " + candidate.implementation + ": " + candidate.why_not;
  }
  throw Unsupported(std::string(op) + ": no implementation can run these arguments:" + reasons);
}

}  // namespace fusedsc
