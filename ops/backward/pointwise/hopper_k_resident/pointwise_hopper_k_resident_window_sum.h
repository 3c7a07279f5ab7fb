/// The second kernel of both gradients where filters have windows (pointwise_hopper_k_resident_windows.h): adds up, in
/// a fixed order, what the blocks of the first have left.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_splits.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kWindowSumThreads = 256;

struct GradientsWindowSumParameters {
  const float* partials = nullptr;  ///< [tile][split][half of a window][filter of a window][column]
  int splits = 1, last_splits = 1;  ///< of a tile; those of the last tile that there are
  int tiles = 1;
  Divisor rows, quads;  ///< fours of columns of a tile, of a row
  int tile_quads = 0, row_quads = 0;
  int lanes = 1;  ///< threads that share the splits of a four: a power of two, 4 to 32
  int channels = 0, windows = 0, filters = 0;
  Divisor step;
  int step_channels = 0;
  void* weight = nullptr;
  std::int64_t weight_row = 0;

  FUSEDSC_HOST_DEVICE int items() const { return tiles * tile_quads; }
  FUSEDSC_HOST_DEVICE int items_of_block() const { return kWindowSumThreads / lanes; }
};

template <class T>
FUSEDSC_DEVICE void sum_windows(const GradientsWindowSumParameters& p) {
  using Four = Aligned<float, 4>;
  let_next_kernel_start();  // see SumPartialsParameters::lets_next_start
  const int thread = thread_index(), items = p.items_of_block(), first = static_cast<int>(block_index()) * items;
  const int lane = thread / items, own = thread - lane * items;
  auto quad = static_cast<std::uint32_t>(first + own);
  const auto tile = static_cast<int>(p.rows.divide(quad));
  const int splits = tile == p.tiles - 1 ? p.last_splits : p.splits;
  const auto step = std::int64_t{p.tile_quads} * 4;
  const SplitsOfThread own_splits(p.partials + tile * p.splits * step + quad * 4, step,
                                  first + own < p.items() ? splits : 0, lane, p.lanes);

  // The element that this thread stores.
  auto place = static_cast<std::uint32_t>(first + thread / 4);
  const int channel_tile = static_cast<int>(p.rows.divide(place));
  int row = static_cast<int>(p.quads.divide(place));
  const int channel = (channel_tile * p.row_quads + static_cast<int>(place)) * 4 + thread % 4;
  const int half = row >= p.filters ? 1 : 0, block = static_cast<int>(p.step.quotient(channel));
  row -= half * p.filters;
  const int window = half == 0 ? block : block == 0 ? p.windows - 1 : block - 1;
  const bool stores = thread < items * 4 && first + thread / 4 < p.items() && channel < p.channels;
  T* const to = static_cast<T*>(p.weight) + (std::int64_t{row} * p.windows + window) * p.weight_row + channel -
                (block - half) * p.step_channels;

  keep_order(own_splits.place() | (upper_word(to) & 0x7fffffffu));
  wait_for_previous_kernel();
  const Four sum = own_splits.sum();
  auto* const sums = static_cast<float*>(shared_memory());
  reinterpret_cast<Four*>(sums)[thread] = sum;
  block_barrier();
  if (!stores) return;
  float all = 0;
#pragma unroll 8
  for (int other = 0; other < p.lanes; ++other) all += sums[other * items * 4 + thread];
  from_accumulator(all, *to);
}

}  // namespace fusedsc::gpu::hopper
