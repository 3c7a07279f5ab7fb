/// Tiles of a pointwise weight in block memory, laid out by threads as the copy engine would leave a dense one.
#pragma once

#include "fusedsc/common/gpu/hopper.h"
#include "fusedsc/common/gpu/weight_source.h"

namespace fusedsc::gpu::hopper {

/// Tiles of filters, which are rows, of channels. From one tile to the next:
struct LaidOutTiles {
  unsigned char* to;
  int pitch;  ///< bytes
  int filter, filters;
  int channel, channels;
  int count;
};

/// Rows of kRowBytes. By so many threads, which publish() and meet before a product reads them.
template <class T, int kRows, int kRowBytes>
FUSEDSC_DEVICE void lay_out_weight(const WeightSource& source, const LaidOutTiles& tiles, int thread, int threads) {
  constexpr int kRuns = kRowBytes / 16, kItems = kRows * kRuns, kRunLength = 16 / sizeof(T);
  constexpr int kAtOnce = 8;  ///< loads that a thread has under way
  // Threads beyond those of one tile take every so-manieth tile.
  const int lanes = threads > kItems ? threads / kItems : 1, lane = thread / kItems;
  if (lane >= lanes) return;
  const int advance = source.first(tiles.filters * lanes);
#pragma unroll 1
  for (int item = thread - lane * kItems; item < kItems; item += threads) {
    const int row = item / kRuns, run = item % kRuns;
    unsigned char* to = tiles.to + lane * tiles.pitch + place_of_run<kRowBytes>(row, run);
    int filter = tiles.filter + lane * tiles.filters + row, channel = tiles.channel + lane * tiles.channels;
    channel += run * kRunLength;
    int first = source.first(filter);
#pragma unroll 1
    for (int tile = lane; tile < tiles.count; tile += lanes * kAtOnce) {
      Aligned<std::uint32_t, 4> runs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (tile + i * lanes >= tiles.count) break;
        runs[i] = source.run<T>(filter, first, channel);
        filter += tiles.filters * lanes;
        channel += tiles.channels * lanes;
        first = source.next(first, advance);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (tile + i * lanes >= tiles.count) break;
        *reinterpret_cast<Aligned<std::uint32_t, 4>*>(to) = runs[i];
        to += lanes * tiles.pitch;
      }
    }
  }
}

}  // namespace fusedsc::gpu::hopper
