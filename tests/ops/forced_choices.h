/// Kernels of a role, each with some or all of its configs, by force: of whatever a call runs.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/recorder.h"
#include "ops/forced.h"

namespace fusedsc::reference {

/// "kernel" of "kernel/config".
inline std::string kernel_of(const std::string& choice) { return choice.substr(0, choice.find('/')); }

/// What could run as `role` in `call`: of each kernel at most `of_each` of its configs, from all over its list; in the
/// next turn the next ones.
template <class Call>
std::vector<std::string> some_choices_of(std::string_view role, std::size_t of_each, std::size_t turn,
                                         const Call& call) {
  tuning::start_recording();
  call();
  tuning::stop_recording();
  std::map<std::string, std::vector<std::string>> of_kernels;
  for (const auto& problem : tuning::recorded_problems()) {
    if (problem->role != role) continue;
    for (const std::string& choice : problem->choices()) {
      std::vector<std::string>& own = of_kernels[kernel_of(choice)];
      if (std::find(own.begin(), own.end(), choice) == own.end()) own.push_back(choice);
    }
  }
  std::vector<std::string> some;
  for (const auto& [kernel, choices] : of_kernels) {
    const std::vector<std::size_t> places = tuning::spread_places(choices.size());
    for (std::size_t i = 0; i < std::min(of_each, places.size()); ++i) {
      some.push_back(choices[places[(turn * of_each + i) % places.size()]]);
    }
  }
  return some;
}

/// How often each choice ran by force.
using ForcedRuns = std::map<std::string, int>;

inline int runs_of(const ForcedRuns& runs, std::string_view kernel) {
  int times = 0;
  for (const auto& [choice, of_choice] : runs) times += kernel_of(choice) == kernel ? of_choice : 0;
  return times;
}

/// What a kernel's configs had as one of their words.
inline std::set<int> values_of(const ForcedRuns& runs, std::string_view kernel, tuning::Knob knob) {
  std::set<int> values;
  for (const auto& [choice, times] : runs) {
    if (kernel_of(choice) == kernel) values.insert(tuning::words_of(choice).parsed_config()[knob]);
  }
  return values;
}

/// verify() with each of them, but for those that `skips` takes; counts them.
template <class Verify, class Skips>
void verify_by_some(const char* role, std::size_t of_each, std::size_t turn, const Verify& verify, ForcedRuns& runs,
                    const Skips& skips) {
  for (const std::string& choice : some_choices_of(role, of_each, turn, verify)) {
    if (skips(choice)) continue;
    verify_by(role, choice, verify);
    ++runs[choice];
    if (testing::Test::HasFailure()) return;
  }
}
template <class Verify>
void verify_by_some(const char* role, std::size_t of_each, std::size_t turn, const Verify& verify, ForcedRuns& runs) {
  verify_by_some(role, of_each, turn, verify, runs, [](const std::string&) { return false; });
}

/// All configs of each kernel.
inline constexpr std::size_t kAllConfigs = 1000;

/// What an operator says where a choice is forced that there is, but that cannot run the arguments; "nothing" where it
/// runs.
template <class Call>
std::string what_is_said(const char* role, const std::string& choice, const Call& call) {
  const Forced forced(role, choice);
  try {
    call();
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace fusedsc::reference
