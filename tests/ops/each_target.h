/// Tests that run once on each instruction set that the machine has; all others run on the best.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fusedsc/runtime/cpu_targets.h"
#include "ops/verify.h"

namespace fusedsc::reference {

class EachTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { use_cpu_target(GetParam()); }
  void TearDown() override { use_cpu_target(""); }

 public:
  static auto all() { return testing::ValuesIn(cpu_targets()); }
  static std::string name(const testing::TestParamInfo<std::string>& info) { return info.param; }
};

/// Every fifth case: enough to meet every kernel with whole and partial vectors.
template <class Case>
void for_some_cases(const std::vector<Case>& cases, void (*check)(const Case&)) {
  std::vector<Case> some;
  for (std::size_t i = 0; i < cases.size(); i += 5) some.push_back(cases[i]);
  for_each_case(some, check);
}

}  // namespace fusedsc::reference
