/// Runs of elements cast to another type, each by blocks of its own.
#pragma once

#include "fusedsc/common/gpu/vector.h"

namespace fusedsc::gpu {

inline constexpr int kCastThreads = 256, kCastSteps = 4;
inline constexpr std::int64_t kCastBlock = kCastThreads * kCastSteps;  ///< elements of a block
inline constexpr int kMostCasts = 8;                                   ///< of a launch

struct CastParameters {
  const void* from[kMostCasts] = {};
  void* to[kMostCasts] = {};
  std::int64_t elements[kMostCasts] = {};
  std::uint32_t end[kMostCasts] = {};  ///< the block behind the run's last
};

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
  const std::int64_t first = (block - begin) * kCastBlock + thread_index();
#pragma unroll
  for (int step = 0; step < kCastSteps; ++step) {
    const std::int64_t i = first + step * kCastThreads;
    if (i < p.elements[run]) from_accumulator(static_cast<Accumulator<To>>(to_accumulator(from[i])), to[i]);
  }
}

}  // namespace fusedsc::gpu
