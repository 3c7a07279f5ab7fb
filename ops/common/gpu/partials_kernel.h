/// The second pass of every sum over a whole tensor: the blocks' partial results, one row per split, put together in a
/// fixed order. A few neighbouring threads of a wave share an element.
#pragma once

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/moments.h"
#include "fusedsc/common/gpu/tensor.h"
#include "fusedsc/common/gpu/wave.h"

namespace fusedsc::gpu {

inline constexpr int kPartialsThreads = 256;

/// Threads per element: enough to have the loads of many splits under way at once.
inline int partials_lanes(int splits) {
  int lanes = 1;
  while (lanes < 32 && lanes * 4 < splits) lanes *= 2;  // 32 is no more than any wave has
  return lanes;
}

struct SumPartialsParameters {
  const void* partials = nullptr;  ///< [split][tap of weight..., vector...][channel]
  int splits = 0, taps = 0, kernel_width = 1, rows = 0, channels = 0, lanes = 1;
  Divisor by_lanes, by_channels;
  DeviceTensor weight;                    ///< [channel, 1, tap / kernel_width, tap % kernel_width], or none
  void* vectors[2] = {nullptr, nullptr};  ///< for the rows after the taps; or none
};

template <class T>
FUSEDSC_DEVICE void sum_partials(const SumPartialsParameters& p) {
  using A = Accumulator<T>;
  std::uint32_t lane = block_index() * kPartialsThreads + static_cast<std::uint32_t>(thread_index());
  std::uint32_t element = p.by_lanes.divide(lane);
  const std::uint32_t size = static_cast<std::uint32_t>(p.rows) * static_cast<std::uint32_t>(p.channels);
  A sum = 0;
  if (element < size) {
    const A* from = static_cast<const A*>(p.partials) + element;
#pragma unroll 8
    for (int split = static_cast<int>(lane); split < p.splits; split += p.lanes) {
      sum += from[split * static_cast<std::int64_t>(size)];
    }
  }
  sum = wave_sum(sum, p.lanes);
  if (element >= size || lane != 0) return;
  const int row = static_cast<int>(p.by_channels.divide(element)), channel = static_cast<int>(element);
  T* to = nullptr;
  if (row >= p.taps) {
    T* vector = static_cast<T*>(row == p.taps ? p.vectors[0] : p.vectors[1]);
    if (vector != nullptr) to = vector + channel;
  } else if (p.weight.data != nullptr) {
    to = elements_of<T>(p.weight) + p.weight.offset(channel, 0, row / p.kernel_width, row % p.kernel_width);
  }
  if (to != nullptr) from_accumulator(sum, *to);
}

struct MergeMomentsParameters {
  const void* partials = nullptr;  ///< [split][mean, m2, count][channel]
  int splits = 0, channels = 0, lanes = 1;
  Divisor by_lanes;
  void *mean = nullptr, *m2 = nullptr;
};

template <class A>
FUSEDSC_DEVICE void merge_moments_of_splits(const MergeMomentsParameters& p) {
  std::uint32_t lane = block_index() * kPartialsThreads + static_cast<std::uint32_t>(thread_index());
  const int channel = static_cast<int>(p.by_lanes.divide(lane));
  // Sums of differences from the first split's mean: no divisions, and nothing cancels, as the means lie close
  // together.
  A count = 0, sum = 0, squares = 0, pivot = 0;
  if (channel < p.channels) {
    const A* from = static_cast<const A*>(p.partials) + channel;
    pivot = from[0];
#pragma unroll 8
    for (int split = static_cast<int>(lane); split < p.splits; split += p.lanes) {
      const A* row = from + static_cast<std::int64_t>(split) * 3 * p.channels;
      const A own = row[2 * p.channels], distance = own > A(0) ? row[0] - pivot : A(0);
      count += own;
      sum += own * distance;
      squares += row[p.channels] + own * distance * distance;
    }
  }
  count = wave_sum(count, p.lanes);
  sum = wave_sum(sum, p.lanes);
  squares = wave_sum(squares, p.lanes);
  if (channel >= p.channels || lane != 0) return;
  const A distance = sum / (count > A(0) ? count : A(1));
  static_cast<A*>(p.mean)[channel] = pivot + distance;
  static_cast<A*>(p.m2)[channel] = propagating_max(squares - sum * distance, A(0));
}

}  // namespace fusedsc::gpu
