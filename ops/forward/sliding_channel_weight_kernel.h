/// The passes of sliding_channel_weight.h on GPUs, a block per filter: its window is worked out once, and no element
/// needs a division. They may start while the kernel before them in the stream ends.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/sliding_channels.h"

namespace fusedsc::gpu {

inline constexpr int kSlidingWeightThreads = 128;

struct SlidingWeightParameters {
  SlidingChannels windows;
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t weight_filter = 0, weight_channel = 0;  ///< strides of the windows' weight
};

/// `T` has the elements' size; the expanded weight is dense.
template <class T>
FUSEDSC_DEVICE void expand_sliding_channels(const SlidingWeightParameters& p) {
  const std::int64_t filter = block_index(), first = p.windows.first(filter);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const T* weight = static_cast<const T*>(p.from) + filter * p.weight_filter;
  T* expanded = static_cast<T*>(p.to) + filter * p.windows.channels;
#pragma unroll 8
  for (std::int64_t c = thread_index(); c < p.windows.channels; c += kSlidingWeightThreads) {
    const std::int64_t k = p.windows.place(first, c);
    expanded[c] = k < p.windows.width ? weight[k * p.weight_channel] : T(0);
  }
}

template <class T>
FUSEDSC_DEVICE void gather_sliding_channels(const SlidingWeightParameters& p) {
  const std::int64_t filter = block_index(), first = p.windows.first(filter);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const T* expanded = static_cast<const T*>(p.from) + filter * p.windows.channels;
  T* weight = static_cast<T*>(p.to) + filter * p.weight_filter;
  for (std::int64_t c = thread_index(); c < p.windows.channels; c += kSlidingWeightThreads) {
    const std::int64_t k = p.windows.place(first, c);
    if (k < p.windows.width) weight[k * p.weight_channel] = expanded[c];
  }
}

}  // namespace fusedsc::gpu
