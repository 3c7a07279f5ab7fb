/// What a measurement holds for, besides its problem: the device.
#pragma once

#include <string>

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::tuning {

/// The name of the current device of that kind, as a folder can be called: "nvidia-h100-80gb-hbm3-132" (name,
/// multiprocessors), "amd-epyc-7763-64-core-processor-avx2" (with the instruction set in use).
std::string environment(Device device);

/// That of a GPU: its name, as its vendor has it, and the number of its multiprocessors.
std::string environment_of_gpu(const std::string& name, int multiprocessors);

/// Of the current GPU; of a CPU 1.
int multiprocessors_of(Device device);

/// The same of any names, lower-case, in letters, digits and single hyphens.
std::string folder_name(const std::string& names);

}  // namespace fusedsc::tuning
