/// The lesser of two numbers, for kernels: std::min is the host's.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

FUSEDSC_DEVICE int least(int a, int b) { return a < b ? a : b; }

}  // namespace fusedsc::gpu
