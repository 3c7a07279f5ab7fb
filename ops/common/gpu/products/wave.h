/// Operations among the threads of a wave (a warp), right for any lane width.
#pragma once

#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu {

/// The sum over `lanes` (a power of two, at most wave_size()) neighbouring threads, the same bits in each of them. All
/// threads of the wave must call it.
template <class T>
FUSEDSC_DEVICE T wave_sum(T value, int lanes = wave_size()) {
  for (int distance = 1; distance < lanes; distance *= 2) value += shuffle_xor(value, distance);
  return value;
}

/// Of so many values of a thread, those that it still has after share_sums() at most.
FUSEDSC_HOST_DEVICE constexpr int most_shared_sums(int count, int from, int to) {
  for (; from >= to; from /= 2) count = (count + 1) / 2;
  return count;
}

/// Adds values up over the threads whose numbers differ in bits kFrom (at most 16) to kTo only. Of each pair of them
/// one has the first half of the values afterwards and the other one the rest, so that half as much is exchanged at
/// each step. Returns the number of the first value that is left to the thread; `count` is how many were, and then are.
template <int kFrom, int kTo, int kCount, class A>
FUSEDSC_DEVICE int share_sums(A (&values)[kCount], int& count) {
  if constexpr (kFrom < kTo) {
    return 0;
  } else {
    constexpr int kHalf = (kCount + 1) / 2;
    const bool has_rest = (thread_index() & kFrom) != 0;
    A kept[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const A low = values[i], high = kHalf + i < kCount ? values[kHalf + i] : A(0);
      kept[i] = (has_rest ? high : low) + shuffle_xor(has_rest ? low : high, kFrom);
    }
    count = has_rest ? count - kHalf : (count < kHalf ? count : kHalf);
    const int first = share_sums<kFrom / 2, kTo>(kept, count);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) values[i] = kept[i];
    return first + (has_rest ? kHalf : 0);
  }
}

}  // namespace fusedsc::gpu
