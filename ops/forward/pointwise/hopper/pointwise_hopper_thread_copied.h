/// Tiles of a pointwise weight in shared memory, laid out by threads as TMA would leave a dense one.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/forward/pointwise/tiles/weight_source.h"

namespace fusedsc::gpu::hopper {

/// Tiles whose rows are filters: where the first one goes and its first element; how much further the next ones are.
struct ThreadCopiedTiles {
  unsigned char* to;
  int pitch;              ///< bytes from one tile to the next
  int filter, filters;    ///< the first, and from one tile to the next
  int channel, channels;  ///< likewise
  int count;
};

/// What products take of elements: floats become TensorFloat-32.
template <class T>
FUSEDSC_DEVICE Aligned<std::uint32_t, 4> factors_of_run(Aligned<std::uint32_t, 4> run) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) run.elements[i] = to_tf32(__builtin_bit_cast(float, run.elements[i]));
  }
  return run;
}

/// Of a dense weight whose pieces are 16 bytes: with few tiles, so that a thread has runs of several rows under way.
/// A tile is kBlocks blocks of kRows rows, each of the channels behind those of the one before.
template <class T, int kRows, int kRowBytes, int kBlocks>
FUSEDSC_DEVICE void lay_out_dense_weight(const WeightSource& source, const ThreadCopiedTiles& tiles, int thread,
                                         int threads) {
  using Run = Aligned<std::uint32_t, 4>;
  constexpr int kRuns = kRowBytes / 16, kRunLength = 16 / sizeof(T), kAtOnce = 4;
  constexpr int kBlockItems = kRows * kRuns, kItems = kBlocks * kBlockItems;
  const int all = kItems * tiles.count;
#pragma unroll 1
  for (int first = thread; first < all; first += threads * kAtOnce) {
    Run runs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * threads, tile = number / kItems, item = number % kBlockItems;
      const int block = number / kBlockItems % kBlocks;
      const int filter = tiles.filter + tile * tiles.filters + item / kRuns;
      const int channel = tiles.channel + tile * tiles.channels + (block * kRuns + item % kRuns) * kRunLength;
      const bool has = number < all && filter < source.filters && channel < source.channels;
      // Without branches: something is always loaded.
      runs[i] =
          *reinterpret_cast<const Run*>(static_cast<const T*>(source.data) + (has ? filter * source.row + channel : 0));
#pragma unroll
      for (int j = 0; j < 4; ++j) runs[i].elements[j] = has ? runs[i].elements[j] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * threads, tile = number / kItems, item = number % kBlockItems;
      if (number >= all) break;
      unsigned char* to = tiles.to + tile * tiles.pitch + number / kBlockItems % kBlocks * kRows * kRowBytes;
      *reinterpret_cast<Run*>(to + place_of_run<kRowBytes>(item / kRuns, item % kRuns)) = factors_of_run<T>(runs[i]);
    }
  }
}

/// kInRuns: as WeightSource::in_runs().
template <class T, int kRows, int kRowBytes, bool kInRuns>
FUSEDSC_DEVICE void lay_out_weight_of(const WeightSource& source, const ThreadCopiedTiles& tiles, int thread,
                                      int threads) {
  constexpr int kRuns = kRowBytes / 16, kItems = kRows * kRuns, kRunLength = 16 / sizeof(T);
  constexpr int kAtOnce = kInRuns ? 8 : 2;  ///< runs that a thread has under way
  // Threads beyond those of one tile go on with the next ones.
  const int lanes = threads > kItems ? threads / kItems : 1, lane = lanes > 1 ? thread / kItems : 0;
  if (lane >= lanes) return;
  const int advance = source.first(tiles.filters * lanes);
#pragma unroll 1
  for (int item = thread - lane * kItems; item < kItems; item += threads) {
    const int row = item / kRuns, run = item % kRuns;
    unsigned char* to = tiles.to + lane * tiles.pitch + place_of_run<kRowBytes>(row, run);
    int filter = tiles.filter + lane * tiles.filters + row;
    int channel = tiles.channel + lane * tiles.channels + run * kRunLength;
    int first = source.first(filter);
#pragma unroll 1
    for (int tile = lane; tile < tiles.count; tile += lanes * kAtOnce) {
      Aligned<std::uint32_t, 4> runs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        runs[i] = source.run<T, kInRuns>(filter, first, channel, tile + i * lanes < tiles.count);
        filter += tiles.filters * lanes;
        channel += tiles.channels * lanes;
        first = source.next(first, advance);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (tile + i * lanes < tiles.count) {
          *reinterpret_cast<Aligned<std::uint32_t, 4>*>(to) = factors_of_run<T>(runs[i]);
        }
        to += lanes * tiles.pitch;
      }
    }
  }
}

/// Rows of kRowBytes, in kBlocks of kRows for each tile. By so many threads, which publish() and meet before a product
/// reads them.
template <class T, int kRows, int kRowBytes, int kBlocks = 1>
FUSEDSC_DEVICE void lay_out_weight(const WeightSource& source, ThreadCopiedTiles tiles, int thread, int threads) {
  const bool in_runs = source.in_runs<T>();
  if (in_runs && source.is_dense())
    return lay_out_dense_weight<T, kRows, kRowBytes, kBlocks>(source, tiles, thread, threads);
  for (int block = 0; block < kBlocks; ++block) {
    if (in_runs) lay_out_weight_of<T, kRows, kRowBytes, true>(source, tiles, thread, threads);
    else lay_out_weight_of<T, kRows, kRowBytes, false>(source, tiles, thread, threads);
    tiles.to += kRows * kRowBytes;
    tiles.channel += kRowBytes / static_cast<int>(sizeof(T));
  }
}

/// Where a block's weight goes, a tile for each of its steps of k, and what of it.
struct ThreadCopiedSteps {
  unsigned char* to;
  int pitch;       ///< bytes from one step to the next
  int channel;     ///< the first of the tile
  int k, advance;  ///< of the first step; from one step to the next
  int count;
};

/// As lay_out_weight: kDepth values of k to a step. kDepthFirst: rows are values of k, in blocks of kColumns channels;
/// otherwise they are channels.
template <class T, bool kDepthFirst, int kChannels, int kDepth, int kColumns>
FUSEDSC_DEVICE void lay_out_steps(const WeightSource& source, const ThreadCopiedSteps& steps, int thread, int threads) {
  constexpr int kSize = sizeof(T), kRowBytes = kColumns * kSize, kBlocks = (kChannels + kColumns - 1) / kColumns;
  if constexpr (kDepthFirst) {
    const ThreadCopiedTiles tiles{steps.to, steps.pitch, steps.k, steps.advance, steps.channel, 0, steps.count};
    lay_out_weight<T, kDepth, kRowBytes, kBlocks>(source, tiles, thread, threads);
  } else {
    const ThreadCopiedTiles tiles{steps.to, steps.pitch, steps.channel, 0, steps.k, steps.advance, steps.count};
    lay_out_weight<T, kChannels, kDepth * kSize>(source, tiles, thread, threads);
  }
}

}  // namespace fusedsc::gpu::hopper
