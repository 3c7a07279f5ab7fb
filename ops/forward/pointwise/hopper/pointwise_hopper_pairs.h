/// How the threads of a warpgroup hold tiles of 64 positions on Hopper GPUs: each has pairs of neighbouring
/// channels of two positions, which are 8 apart.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"

namespace fusedsc::gpu::hopper {

template <class T>
struct PairOf {
  using Type = std::uint32_t;
};
template <>
struct PairOf<float> {
  using Type = Aligned<float, 2>;
};
/// As tensors and tiles hold it.
template <class T>
using Pair = typename PairOf<T>::Type;

using gpu::to_floats;
FUSEDSC_DEVICE void to_floats(const Pair<float>& pair, float& first, float& second, float) {
  first = pair.elements[0];
  second = pair.elements[1];
}

/// Of a thread that has row `thread / 32 * 16 + thread % 32 / 4` of the tile.
template <class T, int kRowBytes>
class PairsOfTile {
 public:
  FUSEDSC_DEVICE explicit PairsOfTile(int thread)
      : lane_(thread % 32), first_row_(thread / 32 * 16), row_(first_row_ + lane_ / 4) {}

  /// The position's, and that of the one 8 further; then of the next 8 channels. The first 8 begin at `channel`.
  FUSEDSC_DEVICE void read(const unsigned char* tile, int channel, Pair<T> (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = *reinterpret_cast<const Pair<T>*>(tile + place(channel, i));
  }

  /// In the same order.
  FUSEDSC_DEVICE void store(unsigned char* tile, int channel, const float (&values)[8]) const {
    if constexpr (sizeof(T) == 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(values[2 * i], values[2 * i + 1], T());
      store_matrices(tile + place_of_run<kRowBytes>(first_row_ + lane_ % 16, channel / 8 + lane_ / 16), words);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<Pair<T>*>(tile + place(channel, i)) = {{values[2 * i], values[2 * i + 1]}};
      }
    }
  }

 private:
  FUSEDSC_DEVICE int place(int channel, int i) const {
    constexpr int kPairBytes = static_cast<int>(sizeof(Pair<T>)), kPairsOfRun = 16 / kPairBytes;
    const int run = (channel / 2 + i / 2 * 4) / kPairsOfRun + lane_ % 4 / kPairsOfRun;
    return place_of_run<kRowBytes>(row_ + i % 2 * 8, run) + lane_ % kPairsOfRun * kPairBytes;
  }

  int lane_, first_row_, row_;
};

}  // namespace fusedsc::gpu::hopper
