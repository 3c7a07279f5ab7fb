/// Kernels of the registry, each by force, whatever would be chosen; and that it was they who ran.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/role.h"
#include "gpu/gpu_under_test.h"

namespace fusedsc::reference {

/// While it exists.
class Forced {
 public:
  Forced(const char* role, const std::string& choice) : role_(role), before_(tuning::force(role, choice)) {}
  ~Forced() { tuning::force(role_, before_); }
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;

 private:
  const char* role_;
  std::string before_;
};

/// What was chosen for a role, while the trace was there, was this, each time, and because it was forced.
inline void expect_ran(const tuning::Trace& trace, const char* role, const std::string& choice) {
  int times = 0;
  for (const tuning::Chosen& chosen : trace.chosen()) {
    if (std::string_view(chosen.role) != role) continue;
    const bool has_config = choice.find('/') != std::string::npos;
    EXPECT_EQ(has_config ? chosen.choice() : std::string(chosen.kernel), choice);
    EXPECT_STREQ(chosen.why, "forced");
    ++times;
  }
  EXPECT_GT(times, 0) << "nothing ran as " << role;
}

/// Runs `verify` with a kernel of a role forced; `choice`: "kernel" or "kernel/config".
template <class Verify>
void verify_by(const char* role, const std::string& choice, const Verify& verify) {
  SCOPED_TRACE(testing::Message() << role << ": " << choice);
  const Forced forced(role, choice);
  const tuning::Trace trace;
  verify();
  expect_ran(trace, role, choice);
}

/// Of what explain says of a role, as the prior has it: that this is what `call` runs. Returns "kernel" or
/// "kernel/config".
template <class Call>
std::string expect_explained(const std::string& role, const std::vector<Candidate>& candidates, const Call& call) {
  std::string choice;
  for (const Candidate& candidate : candidates) {
    if (!candidate.taken || !role.ends_with('.' + candidate.direction)) continue;
    EXPECT_EQ(candidate.why_not, "");
    EXPECT_EQ(candidate.why, "prior");
    EXPECT_EQ(choice, "") << "two are taken";
    choice = candidate.implementation + (candidate.config.empty() ? "" : '/' + candidate.config);
  }
  const tuning::Trace trace;
  call();
  std::vector<std::string> ran;
  for (const tuning::Chosen& chosen : trace.chosen()) {
    if (chosen.role == role) ran.push_back(chosen.choice() + ": " + chosen.why);
  }
  EXPECT_EQ(ran, std::vector{choice + ": prior"});
  return choice;
}

/// The kernels that can run a problem, of those named, or of all but generated ones, which generated_gpu_test.cpp runs.
using Names = std::vector<std::string_view>;

template <class Arguments>
std::vector<tuning::Kernel<Arguments>> able(std::span<const tuning::Kernel<Arguments>> kernels,
                                            const Arguments& arguments, const Names& names = {}) {
  std::vector<tuning::Kernel<Arguments>> found;
  for (const tuning::Kernel<Arguments>& kernel : kernels) {
    const bool is_generated = std::string_view(kernel.name) == "generated";
    const bool is_named =
        names.empty() ? !is_generated : std::find(names.begin(), names.end(), kernel.name) != names.end();
    if (is_named && kernel.unsupported(arguments).empty()) found.push_back(kernel);
  }
  return found;
}

/// Of a kernel's configs for a problem at most `most` that are far apart, others for each problem; as force() takes
/// them.
template <class Arguments>
std::vector<std::string> some_choices(const tuning::Kernel<Arguments>& kernel, const Arguments& arguments,
                                      std::size_t problem, std::size_t most) {
  const tuning::Configs configs = kernel.configs(arguments);
  EXPECT_FALSE(configs.empty()) << kernel.name;
  std::vector<std::string> some;
  const std::size_t step = std::max<std::size_t>(configs.size() / most, 1);
  for (std::size_t i = 0; i < std::min(most, configs.size()); ++i) {
    const tuning::Config& config = configs[(i * step + problem) % configs.size()];
    const std::string words = tuning::printed(config);
    EXPECT_EQ(tuning::parsed(words), config);
    some.push_back(kernel.name + (words.empty() ? "" : '/' + words));
  }
  return some;
}

}  // namespace fusedsc::reference
