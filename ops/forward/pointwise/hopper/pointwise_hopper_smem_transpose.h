/// Weights of float32 as TMA brings them, which become TensorFloat-32 where they lie in shared memory. Those whose
/// channels are innermost, for products that want their k there, are transposed in blocks of both meanwhile, in place
/// of a kernel that does it for all of the weight.
#pragma once

#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_prologue.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kTransposed = 32, kTransposedBytes = kTransposed * kTransposed * 4;  ///< of a block

/// By kThreads threads, of which this is number `thread`: kBytes of floats. They publish() and meet before a product
/// reads them.
template <int kBytes, int kThreads>
FUSEDSC_DEVICE void round_floats(unsigned char* memory, int thread) {
  constexpr int kRuns = kBytes / 16, kEach = kRuns / kThreads;
  static_assert(kBytes % 16 == 0);
  auto* runs = reinterpret_cast<Aligned<float, 4>*>(memory) + thread;
  const auto round = [](Aligned<float, 4>& run) {
    Aligned<float, 4> four = run;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.elements[i] = rounded_to_tf32(four.elements[i]);
    run = four;
  };
#pragma unroll 2
  for (int i = 0; i < kEach; ++i) round(runs[i * kThreads]);
  if constexpr (kRuns % kThreads != 0) {
    if (thread < kRuns % kThreads) round(runs[kEach * kThreads]);
  }
}

/// By a warp: rows of a tile become its columns, rounded to TensorFloat-32. A lane has a column, then a row.
FUSEDSC_DEVICE void transpose_block(unsigned char* block) {
  const int lane = thread_index() % 32;
  float column[kTransposed];
#pragma unroll
  for (int row = 0; row < kTransposed; ++row) {
    column[row] = *reinterpret_cast<const float*>(block + place_of_run<128>(row, lane / 4) + lane % 4 * 4);
  }
  warp_barrier();
#pragma unroll
  for (int run = 0; run < kTransposed / 4; ++run) {
    Aligned<float, 4> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.elements[i] = rounded_to_tf32(column[run * 4 + i]);
    *reinterpret_cast<Aligned<float, 4>*>(block + place_of_run<128>(lane, run)) = four;
  }
}

/// Tiles of kChannels channels and 32 values of k, as TMA brings them: blocks of 32 channels, of which each
/// warp takes some, once wait_for(tile) is over. Before products read them there must be a barrier.
template <int kChannels, class Wait>
FUSEDSC_DEVICE void transpose_tiles(unsigned char* tiles, int count, int warp, int warps, const Wait& wait_for) {
  constexpr int kBlocks = kChannels / kTransposed;
  for (int block = warp; block < count * kBlocks; block += warps) {
    wait_for(block / kBlocks);
    transpose_block(tiles + block * kTransposedBytes);
  }
  publish();
}
/// Of tiles that are there.
template <int kChannels>
FUSEDSC_DEVICE void transpose_tiles(unsigned char* tiles, int count, int warp, int warps) {
  transpose_tiles<kChannels>(tiles, count, warp, warps, [](int) {});
}

/// Likewise, by the kRowTiles warpgroups that share a weight, which meet at the end. A block has kKSlices such
/// weights: k_slice is the number of this one, and row_tile that of the group among those that share it.
template <int kChannels, int kRowTiles, int kKSlices, class... Wait>
FUSEDSC_DEVICE void transpose_tiles_together(unsigned char* tiles, int count, int row_tile, int k_slice,
                                             const Wait&... wait_for) {
  transpose_tiles<kChannels>(tiles, count, row_tile * 4 + thread_index() % kGroupThreads / 32, kRowTiles * 4,
                             wait_for...);
  group_barrier<kRowTiles * kGroupThreads>(kRowTiles * (1 + kKSlices) + k_slice);
}

/// Rounds a tile of kBytes by the warpgroups that share it, likewise.
template <int kBytes, int kRowTiles, int kKSlices>
FUSEDSC_DEVICE void round_tile_together(unsigned char* tile, int row_tile, int k_slice) {
  constexpr int kThreads = kRowTiles * kGroupThreads;
  round_floats<kBytes, kThreads>(tile, row_tile * kGroupThreads + thread_index() % kGroupThreads);
  publish();
  group_barrier<kThreads>(kRowTiles * (1 + kKSlices) + k_slice);
}

/// Starts the copies of a tile that is to be transposed.
template <int kChannels>
FUSEDSC_DEVICE void start_transposed(unsigned char* tile, const TensorMap& weight, int first_channel, int k,
                                     Barrier* barrier) {
  for (int i = 0; i < kChannels / kTransposed; ++i) {
    start_load(tile + i * kTransposedBytes, weight, first_channel + i * kTransposed, k, barrier);
  }
}

/// Whether a product of these tiles can be had so.
template <class T, int kChannels, int kDepth, bool kPlain>
inline constexpr bool kCanTranspose = sizeof(T) == 4 && kPlain&& kDepth == kTransposed&& kChannels % kTransposed == 0;

}  // namespace fusedsc::gpu::hopper
