/// What a GPU calls itself.
#pragma once

#include <string>

namespace fusedsc::gpu {

/// Of the current device: tuning/store/environment.h.
std::string environment();

int multiprocessor_count();

}  // namespace fusedsc::gpu
