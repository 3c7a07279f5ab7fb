/// Edge and random suites of convolutions, each case by kernels of the registry, by force: so a kernel meets them on
/// any GPU, whatever would be chosen.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "gpu/forced.h"
#include "ops/backward_case.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {

/// Which kernels of a suite take a case, of those that can run it: on a GPU all of them; on the host executor, which is
/// slow, those that ran the least until then.
class KernelTurns {
 public:
  explicit KernelTurns(std::size_t most_on_host) : most_(gpu_is_host_executor() ? most_on_host : kAll) {}

  template <class Kernel>
  std::vector<Kernel> next(std::vector<Kernel> able) {
    for (const Kernel& kernel : able) runs_.try_emplace(kernel.name, 0);
    std::stable_sort(able.begin(), able.end(),
                     [&](const Kernel& a, const Kernel& b) { return runs_[a.name] < runs_[b.name]; });
    able.resize(std::min(able.size(), most_));
    for (const Kernel& kernel : able) ++runs_[kernel.name];
    return able;
  }

  /// Of those that could run a case of the suite. (Whether each run was theirs is what verify_by looks at.)
  const std::map<std::string, int>& runs() const { return runs_; }

 private:
  static constexpr std::size_t kAll = 1000;

  std::size_t most_;
  std::map<std::string, int> runs_;
};

/// All of them on a GPU, on the host executor every `step`-th.
template <class Case>
std::vector<Case> some_on_host(const std::vector<Case>& cases, std::size_t step) {
  if (!gpu_is_host_executor()) return cases;
  std::vector<Case> some;
  for (std::size_t i = 0; i < cases.size(); i += step) some.push_back(cases[i]);
  return some;
}

/// Whether each of them ran.
inline void expect_all_ran(const std::map<std::string, int>& runs, const Names& names) {
  for (const std::string_view name : names) {
    const auto found = runs.find(std::string(name));
    EXPECT_TRUE(found != runs.end() && found->second > 0) << "no problem of this test is for " << name;
  }
}

/// A problem of two gradients, and each of these by itself, which most kernels are for; another one alone.
template <class Geometry>
std::vector<BackwardCase<Geometry>> with_halves(const BackwardCase<Geometry>& problem) {
  std::vector<BackwardCase<Geometry>> all{problem};
  if (!problem.fusion.grad_x || !(problem.fusion.grad_weight || problem.fusion.grad_bias)) return all;
  all.push_back(problem);
  all.back().fusion.grad_weight = all.back().fusion.grad_bias = false;
  all.push_back(problem);
  BackwardFusion& weight = all.back().fusion;
  weight.grad_x = weight.sums = weight.grad_add = false;
  return all;
}

/// Of each problem all of these on a GPU; on the host executor one, the next one of each next problem.
template <class Geometry>
std::vector<BackwardCase<Geometry>> with_halves(const std::vector<BackwardCase<Geometry>>& problems) {
  std::vector<BackwardCase<Geometry>> all;
  std::size_t number = 0;
  for (const BackwardCase<Geometry>& problem : problems) {
    const std::vector<BackwardCase<Geometry>> halves = with_halves(problem);
    if (gpu_is_host_executor()) all.push_back(halves[number++ % halves.size()]);
    else all.insert(all.end(), halves.begin(), halves.end());
  }
  return all;
}

/// Each case by kernels that can, of those named or of all, with the config that they would be taken with. `Tensors`:
/// of a case; `verify`: computes it and compares. Returns how often each ran.
template <class Tensors, class Case, class Kernels, class Verify>
std::map<std::string, int> verify_by_kernels(const char* role, const Kernels& kernels, const std::vector<Case>& cases,
                                             const Names& names, std::size_t most_on_host, const Verify& verify) {
  KernelTurns turns(most_on_host);
  for_each_case(cases, [&](const Case& problem) {
    Tensors tensors(problem);
    for (const auto& kernel : turns.next(able(kernels, tensors.arguments(problem), names))) {
      verify_by(role, kernel.name, [&] { verify(problem); });
      if (testing::Test::HasFailure()) return;
    }
  });
  return turns.runs();
}

template <class Geometry, class Kernels>
std::map<std::string, int> verify_forward_by_kernels(const char* role, const Kernels& kernels,
                                                     const std::vector<ForwardCase<Geometry>>& cases,
                                                     const Names& names = {}, std::size_t most_on_host = 1) {
  return verify_by_kernels<ForwardTensors<Geometry>>(role, kernels, cases, names, most_on_host,
                                                     [](const auto& problem) { verify_forward(problem); });
}

template <class Geometry, class Kernels>
std::map<std::string, int> verify_backward_by_kernels(const char* role, const Kernels& kernels,
                                                      const std::vector<BackwardCase<Geometry>>& cases,
                                                      const Names& names = {}, std::size_t most_on_host = 1) {
  return verify_by_kernels<BackwardTensors<Geometry>>(role, kernels, cases, names, most_on_host,
                                                      [](const auto& problem) { verify_backward(problem); });
}

}  // namespace fusedsc::reference
