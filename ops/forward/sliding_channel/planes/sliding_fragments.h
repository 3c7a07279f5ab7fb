/// A banded weight (sliding_bands.h) of TensorFloat-32, laid out once for all blocks that multiply with it.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/sliding_channel/planes/sliding_bands.h"

namespace fusedsc::gpu {

/// What a lane has of 16 rows and eight values of k (mma.m16n8k8).
using SlidingFragment = Aligned<std::uint32_t, 4>;

/// The weight as instructions (mma.m16n8k8) take it: of 16 rows and eight values of k, 16 bytes for each lane.
struct SlidingFragments {
  SlidingBands bands;
  const float* weight = nullptr;
  std::int64_t filter = 0, channel = 0;  ///< strides
  SlidingFragment* fragments = nullptr;
  int tiles = 0, steps = 0;  ///< of 16 rows; eights of each
  Divisor by_steps;

  static constexpr int kRows = 16, kThreads = 256;

  SlidingFragments() = default;
  explicit SlidingFragments(const SlidingBands& bands_)
      : bands(bands_),
        tiles((bands.rows() + kRows - 1) / kRows),
        steps(bands.most(kRows)),
        by_steps(static_cast<std::uint32_t>(steps)) {}

  std::int64_t fragments_count() const { return std::int64_t{32} * tiles * steps; }
  std::int64_t blocks() const { return (fragments_count() + kThreads - 1) / kThreads; }
};

FUSEDSC_DEVICE void lay_out_sliding_fragments(const SlidingFragments& p) {
  const int item = static_cast<int>(block_index()) * p.kThreads + thread_index(), lane = item % 32;
  auto step = static_cast<std::uint32_t>(item / 32);
  const int tile = static_cast<int>(p.by_steps.divide(step));
  std::int64_t places[4];
  if (tile < p.tiles) {
    const auto band = p.bands.band(tile * p.kRows, p.kRows);
    int eight = band.begin + static_cast<int>(step);
    if (eight >= p.bands.eights()) eight -= p.bands.eights();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile * p.kRows + lane / 4 + i % 2 * 8, k = eight * 8 + lane % 4 + i / 2 * 4;
      const int place = row < p.bands.rows() ? p.bands.place(row, k) : p.bands.lines.width;
      places[i] = place < p.bands.lines.width ? p.bands.filter(row, k) * p.filter + place * p.channel : -1;
    }
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (tile >= p.tiles) return;
  SlidingFragment words;
#pragma unroll
  for (int i = 0; i < 4; ++i) words.elements[i] = places[i] >= 0 ? to_tf32(p.weight[places[i]]) : 0;
  p.fragments[item] = words;
}

}  // namespace fusedsc::gpu
