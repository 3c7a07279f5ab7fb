/// Asking for memory ahead of its use.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// Asks for a line of the last-level cache, where the GPU has an instruction for it; nobody waits.
FUSEDSC_DEVICE void prefetch([[maybe_unused]] const void* address) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

}  // namespace fusedsc::gpu
