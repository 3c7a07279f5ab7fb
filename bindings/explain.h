/// What fusedsc.explain prints: which implementation or kernel runs, and why the others cannot.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "fusedsc/runtime/implementation.h"

namespace fusedsc::aten {

/// Columns: direction ("forward", "backward", and the gradients that kernels of their own compute), implementation, why
/// it cannot run (empty where it can); of the one that is taken its config in words, and why it is taken (empty: it is
/// not).
using Strings = std::vector<std::string>;
using Explanation = std::tuple<Strings, Strings, Strings, Strings, Strings>;

inline Explanation explanation(const std::vector<Candidate>& forward, const std::vector<Candidate>& backward) {
  Explanation columns;
  const auto append = [&columns](const char* direction, const std::vector<Candidate>& candidates) {
    for (const Candidate& candidate : candidates) {
      const char* why = candidate.taken ? "the first that can" : "";
      std::get<0>(columns).push_back(candidate.direction.empty() ? direction : candidate.direction);
      std::get<1>(columns).push_back(candidate.implementation);
      std::get<2>(columns).push_back(candidate.why_not);
      std::get<3>(columns).push_back(candidate.config);
      std::get<4>(columns).push_back(candidate.why.empty() ? why : candidate.why);
    }
  };
  append("forward", forward);
  append("backward", backward);
  return columns;
}

}  // namespace fusedsc::aten
