/// Operations among the threads of a wave (a warp), right for any lane width.
#pragma once

#include "fusedsc/common/gpu/gpu.h"

namespace fusedsc::gpu {

/// The sum over `lanes` (a power of two, at most wave_size()) neighbouring threads, the same bits in each of them. All
/// threads of the wave must call it.
template <class T>
FUSEDSC_DEVICE T wave_sum(T value, int lanes = wave_size()) {
  for (int distance = 1; distance < lanes; distance *= 2) value += shuffle_xor(value, distance);
  return value;
}

}  // namespace fusedsc::gpu
