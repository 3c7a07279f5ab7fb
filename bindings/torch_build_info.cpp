/// What this build has, as `fusedsc info` prints it.
#include <torch/library.h>
#include <torch/version.h>

#include <string>
#include <tuple>
#include <vector>

#include "fusedsc/runtime/cpu_targets.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

std::tuple<std::string, std::vector<std::string>, std::string, std::string> build_info() {
  return {TORCH_VERSION, cpu_targets(), FUSEDSC_BUILT_FOR_GPU, FUSEDSC_BUILT_FOR_ARCHITECTURES};
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CompositeExplicitAutograd, m) { m.impl("_build_info", translated<build_info>); }

}  // namespace fusedsc::aten
