/// Tiles of a pointwise weight in block memory, laid out by threads as the copy engine would leave a dense one.
#pragma once

#include "fusedsc/common/gpu/hopper.h"
#include "fusedsc/common/gpu/weight_source.h"

namespace fusedsc::gpu::hopper {

/// A tile of filters, which are rows, of kRowBytes of channels: where it goes, and what its first element is.
struct WeightTile {
  unsigned char* to;
  int filter, channel;
};

/// `tiles` of them, by so many threads, which publish() and meet before a product reads them. tile(i) says which.
template <class T, int kRows, int kRowBytes, class Tile>
FUSEDSC_DEVICE void lay_out_weight(const WeightSource& source, int tiles, int thread, int threads, const Tile& tile) {
  constexpr int kRuns = kRowBytes / 16, kItems = kRows * kRuns, kRunLength = 16 / sizeof(T);
  constexpr int kAtOnce = 4;  ///< loads that a thread has under way
#pragma unroll 1
  for (int first = thread; first < tiles * kItems; first += kAtOnce * threads) {
    Aligned<std::uint32_t, 4> runs[kAtOnce];
    unsigned char* places[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int item = first + i * threads, row = item % kItems / kRuns, run = item % kRuns;
      if (item >= tiles * kItems) break;
      const WeightTile from = tile(item / kItems);
      places[i] = from.to + place_of_run<kRowBytes>(row, run);
      runs[i] = source.run<T>(from.filter + row, from.channel + run * kRunLength);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * threads >= tiles * kItems) break;
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(places[i]) = runs[i];
    }
  }
}

}  // namespace fusedsc::gpu::hopper
