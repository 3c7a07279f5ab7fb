/// The passes of sliding_channel_weight.h on GPUs. They may start while the kernel before them in the stream ends.
#pragma once

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/tiles/weight_source.h"

namespace fusedsc::gpu {

inline constexpr int kSlidingWeightThreads = 128;

struct SlidingElementsParameters {
  SlidingChannels windows;
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t weight_filter = 0, weight_channel = 0;  ///< strides of the windows' weight
};

/// Expanding where rows are whole runs of 16 bytes: a run per thread.
struct SlidingRunsParameters {
  WeightSource source;
  void* to = nullptr;
  Divisor runs;  ///< of a filter
  std::int64_t all = 0;
};

template <class T>
FUSEDSC_DEVICE void expand_sliding_runs(const SlidingRunsParameters& p) {
  using Run = Aligned<std::uint32_t, 4>;
  const auto item =
      static_cast<std::uint32_t>(block_index()) * kSlidingWeightThreads + static_cast<std::uint32_t>(thread_index());
  auto run = item;
  const auto filter = static_cast<int>(p.runs.divide(run));
  const int first = p.source.first(filter), channel = static_cast<int>(run) * static_cast<int>(16 / sizeof(T));
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (item >= p.all) return;
  static_cast<Run*>(p.to)[item] = p.source.in_runs<T>() ? p.source.run<T, true>(filter, first, channel)
                                                        : p.source.run<T, false>(filter, first, channel);
}

/// Otherwise a block per filter: its window is worked out once, and no element needs a division. `T` has the elements'
/// size; the expanded weight is dense.
template <class T>
FUSEDSC_DEVICE void expand_sliding_channels(const SlidingElementsParameters& p) {
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
FUSEDSC_DEVICE void gather_sliding_channels(const SlidingElementsParameters& p) {
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
