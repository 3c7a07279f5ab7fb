/// The instruction sets that CPU kernels are compiled for; the best one this machine has is chosen at run time.
#pragma once

#include <string>
#include <vector>

namespace fusedsc {

/// Highway's names ("AVX3", "AVX2", "SSSE3", "NEON"...) of those this machine can run, best first.
std::vector<std::string> cpu_targets();

/// Kernels run with this one from now on, in the whole process; "" is the best again. For tests and for comparing
/// instruction sets. Throws InvalidArgument, naming those there are.
void use_cpu_target(const std::string& name);

}  // namespace fusedsc
