#include "fusedsc/runtime/cpu_targets.h"

#include "fusedsc/common/cpu/targets.h"
#include "fusedsc/common/status.h"
#include "hwy/highway.h"

namespace fusedsc {

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

void use_cpu_target(const std::string& name) {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  if (name.empty()) return;
  std::string known;
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().DeInit();
      return;
    }
    known += std::string(known.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  throw InvalidArgument("cpu target: \"" + name + "\" is not one of this machine's: " + known);
}

}  // namespace fusedsc
