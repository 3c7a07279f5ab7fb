/// Runs of elements cast to another type, each by blocks of its own; of one that has windows (cast.h), elements are
/// read from other places than they are written to.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/forward/pointwise/tiles/weight_source.h"

namespace fusedsc::gpu {

inline constexpr int kCastThreads = 256, kCastSteps = 4;
inline constexpr std::int64_t kCastBlock = kCastThreads * kCastSteps;  ///< elements of a block
inline constexpr int kMostCasts = 8;                                   ///< of a launch

/// Which run is a weight with windows, if any, and where its elements are.
struct SlidingCast {
  int run = -1;
  bool gathers = false;
  bool in_fours = false;  ///< elements can be moved four at a time: neighbours on either side, and aligned
  WeightSource windows;
  Divisor row;  ///< elements of a filter, as they are written

  /// The place that an element is read from; below 0: it is 0.
  FUSEDSC_DEVICE std::int64_t source_of(std::uint32_t place) const {
    const auto filter = static_cast<int>(row.divide(place));
    const int first = windows.first(filter), in_row = static_cast<int>(place);
    if (gathers) return std::int64_t{filter} * windows.channels + windows.next(first, in_row);
    return windows.offset(filter, first, in_row);
  }
};

struct CastParameters {
  const void* from[kMostCasts] = {};
  void* to[kMostCasts] = {};
  std::int64_t elements[kMostCasts] = {};
  std::uint32_t end[kMostCasts] = {};  ///< the block behind the run's last
  SlidingCast sliding;
};

template <class From, class To>
FUSEDSC_DEVICE void cast_sliding_run(const CastParameters& p, int run, const From* from, To* to, std::uint32_t block) {
  if constexpr (sizeof(From) <= 4 && sizeof(To) <= 4) {
    if (p.sliding.in_fours) {
      const std::int64_t i = block * kCastBlock + thread_index() * 4;
      if (i >= p.elements[run]) return;
      const std::int64_t source = p.sliding.source_of(static_cast<std::uint32_t>(i));
      Accumulator<From> values[4] = {};
      if (source >= 0) load<4>(from + source).widen(values);
      Accumulator<To> results[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) results[j] = static_cast<Accumulator<To>>(values[j]);
      store<4>(results, to + i);
      return;
    }
  }
#pragma unroll 1
  for (int step = 0; step < kCastSteps; ++step) {
    const std::int64_t i = block * kCastBlock + step * kCastThreads + thread_index();
    if (i >= p.elements[run]) return;
    const std::int64_t source = p.sliding.source_of(static_cast<std::uint32_t>(i));
    from_accumulator(source < 0 ? Accumulator<To>(0) : static_cast<Accumulator<To>>(to_accumulator(from[source])),
                     to[i]);
  }
}

template <class From, class To>
FUSEDSC_DEVICE void cast_runs(const CastParameters& p) {
  const std::uint32_t block = block_index();
  int run = 0;
  std::uint32_t begin = 0;
#pragma unroll
  for (int i = 0; i + 1 < kMostCasts; ++i) {
    if (block < p.end[i]) break;
    begin = p.end[i];
    run = i + 1;
  }
  const From* from = static_cast<const From*>(p.from[run]);
  To* to = static_cast<To*>(p.to[run]);
  if (run == p.sliding.run) return cast_sliding_run(p, run, from, to, block - begin);
  const std::int64_t first = (block - begin) * kCastBlock + thread_index();
#pragma unroll
  for (int step = 0; step < kCastSteps; ++step) {
    const std::int64_t i = first + step * kCastThreads;
    if (i < p.elements[run]) from_accumulator(static_cast<Accumulator<To>>(to_accumulator(from[i])), to[i]);
  }
}

}  // namespace fusedsc::gpu
