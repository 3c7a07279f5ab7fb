/// What fusedsc.explain prints: which implementation runs, and why the others cannot.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "fusedsc/runtime/implementation.h"

namespace fusedsc::aten {

/// Columns: direction ("forward", "backward"), implementation, and why it cannot run (empty where it can).
using Explanation = std::tuple<std::vector<std::string>, std::vector<std::string>, std::vector<std::string>>;

inline Explanation explanation(const std::vector<Candidate>& forward, const std::vector<Candidate>& backward) {
  Explanation columns;
  const auto append = [&columns](const char* direction, const std::vector<Candidate>& candidates) {
    for (const auto& candidate : candidates) {
      std::get<0>(columns).push_back(direction);
      std::get<1>(columns).push_back(candidate.implementation);
      std::get<2>(columns).push_back(candidate.why_not);
    }
  };
  append("forward", forward);
  append("backward", backward);
  return columns;
}

}  // namespace fusedsc::aten
