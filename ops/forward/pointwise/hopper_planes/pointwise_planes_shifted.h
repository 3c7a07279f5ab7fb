/// Tiles of contiguous tensors in the shared memory of Hopper GPUs, as pointwise_planes_tile.h, of planes that begin
/// anywhere.
#pragma once

#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_tile.h"

namespace fusedsc::gpu::hopper {

/// Of planes that are whole runs of 16 bytes only some together, of any number of positions. TMA takes
/// those planes for one row, of which its boxes begin at multiples of 16 bytes: each channel's values begin some places
/// behind the beginning of its row in shared memory. Tiles of outputs are stored by the threads of a group.
template <class T>
class PlanesShifted {
 public:
  static constexpr bool kWholeImages = false, kThreadsStore = true;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kRun = 16 / kSize;
  static constexpr int kColumns = kTileRows + kRun;  ///< elements of a row of a box
  static constexpr int kRowBytes = kColumns * kSize;

  FUSEDSC_DEVICE PlanesShifted(const PlanesTiling& tiling, int thread, int /*part*/)
      : tiling_(tiling), thread_(thread), lane_(thread % 32), warp_(thread / 32) {}

  FUSEDSC_HOST_DEVICE static constexpr int bytes(int channels, const PlanesTiling& tiling) {
    return box_bytes(channels, tiling) << tiling.together_log2;
  }

  /// Rows of sums are spread such that reading them meets each bank once, if neighbouring planes begin one place apart.
  FUSEDSC_DEVICE int position(int i) const {
    if constexpr (kSize == 2) return lane_ / 4 * 8 + warp_ * 2 + i;
    else return warp_ / 2 * 32 + lane_ / 4 * 4 + warp_ % 2 * 2 + i;
  }

  FUSEDSC_DEVICE int copied_bytes(const PlanesSource&, int /*channel*/, int channels) const {
    return channels * kRowBytes;
  }
  /// `position` is a multiple of kTileRows, and `channel` of the planes that are a run together.
  FUSEDSC_DEVICE void start_load(unsigned char* tile, const PlanesSource& from, int channel, int channels, int position,
                                 int image, Barrier* barrier) const {
    for (int plane = 0; plane < 1 << tiling_.together_log2; ++plane) {
      const int first = plane * tiling_.positions + position;
      const ImagePlace place{first / kRun * kRun, channel >> tiling_.together_log2, 0, image};
      hopper::start_load(tile + plane * box_bytes(channels, tiling_), from.map, place, barrier);
    }
  }
  /// By all threads of the group.
  FUSEDSC_DEVICE void store_tile(void* data, int all_channels, const unsigned char* tile, int channel, int channels,
                                 int position, int image) const {
    const int column = thread_ % kTileRows, rows = least(all_channels - channel, channels);
    if (position + column >= tiling_.positions) return;
    const T* from = reinterpret_cast<const T*>(tile) + column;
    T* to =
        static_cast<T*>(data) + (std::int64_t{image} * all_channels + channel) * tiling_.positions + position + column;
#pragma unroll 4
    for (int row = thread_ / kTileRows; row < rows; row += kGroupThreads / kTileRows) {
      to[static_cast<std::int64_t>(row) * tiling_.positions] = from[row * kOutPitch];
    }
  }

  FUSEDSC_DEVICE void load_rows(const unsigned char* tile, int channels, int k, int /*existing*/,
                                std::uint32_t (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kSize == 2) to[i] = pair(tile, channels, k + i / 2 * 8 + lane_ % 4 * 2, i % 2);
      else to[i] = bits_of(*at(tile, channels, k + i / 2 * 4 + lane_ % 4, i % 2));
    }
  }

  FUSEDSC_DEVICE void read(const unsigned char* tile, int channels, int channel, const bool (&exists)[2],
                           Pair<T> (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = exists[i % 2] ? pair(tile, channels, channel + i / 2 * 8 + lane_ % 4 * 2, i % 2) : Pair<T>{};
    }
  }

  FUSEDSC_DEVICE void store(unsigned char* tile, int /*channels*/, int channel, const bool (&exists)[2],
                            const float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!exists[i / 2 % 2]) continue;
      const int row = channel + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
      from_accumulator(values[i], reinterpret_cast<T*>(tile)[row * kOutPitch + position(i / 2 % 2)]);
    }
  }

 private:
  static constexpr int kOutPitch = kTileRows + (kSize == 2 ? 2 : 1);  ///< of tiles of outputs: other banks
  static_assert(kOutPitch <= kColumns);

  /// Of one plane of each of those that are a run together.
  FUSEDSC_HOST_DEVICE static constexpr int box_bytes(int channels, const PlanesTiling& tiling) {
    return ((channels >> tiling.together_log2) * kRowBytes + 127) / 128 * 128;
  }

  FUSEDSC_DEVICE const T* at(const unsigned char* tile, int channels, int channel, int i) const {
    const int plane = channel & ((1 << tiling_.together_log2) - 1), row = channel >> tiling_.together_log2;
    const int shift = plane * tiling_.positions % kRun;
    return reinterpret_cast<const T*>(tile + plane * box_bytes(channels, tiling_) + row * kRowBytes) + shift +
           position(i);
  }
  FUSEDSC_DEVICE Pair<T> pair(const unsigned char* tile, int channels, int channel, int i) const {
    const T *first = at(tile, channels, channel, i), *second = at(tile, channels, channel + 1, i);
    if constexpr (kSize == 2) return first->bits | static_cast<std::uint32_t>(second->bits) << 16;
    else return {{*first, *second}};
  }

  const PlanesTiling& tiling_;
  int thread_, lane_, warp_;
};

}  // namespace fusedsc::gpu::hopper
