/// Kernels of the registry, each by force, whatever would be chosen; and that it was they who ran.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/tuning/role.h"

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

/// What was chosen for a role, while the trace was there, was this, each time, and because it was forced, or what `why`
/// says.
inline void expect_ran(const tuning::Trace& trace, const char* role, const std::string& choice,
                       const char* why = "forced") {
  int times = 0;
  for (const tuning::Chosen& chosen : trace.chosen()) {
    if (std::string_view(chosen.role) != role) continue;
    const bool has_config = choice.find('/') != std::string::npos;
    EXPECT_EQ(has_config ? chosen.choice() : std::string(chosen.kernel), choice);
    EXPECT_STREQ(chosen.why, why);
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

}  // namespace fusedsc::reference
