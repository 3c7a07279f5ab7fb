#include "fusedsc/runtime/cpu_targets.h"

#include <algorithm>

#include "fusedsc/common/cpu/matrix_units.h"
#include "fusedsc/common/cpu/targets.h"
#include "fusedsc/common/status.h"
#include "hwy/highway.h"

namespace fusedsc {
namespace {

/// The vector instructions that come with matrix units, and both together.
constexpr const char* kVectors = "AVX3";
constexpr const char* kWithMatrixUnits = "AVX3_AMX";

}  // namespace

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  if (machine_has_matrix_units()) names.insert(names.begin(), kWithMatrixUnits);
  return names;
}

void use_cpu_target(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  use_matrix_units(name.empty() || name == kWithMatrixUnits);
  if (name.empty()) return;
  const std::string vectors = name == kWithMatrixUnits && machine_has_matrix_units() ? kVectors : name;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    if (vectors == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().DeInit();
      return;
    }
  }
  std::string known;
  for (const std::string& target : cpu_targets()) known += (known.empty() ? "" : ", ") + target;
  throw InvalidArgument("cpu target: \"" + name + "\" is not one of this machine's: " + known);
}

}  // namespace fusedsc
