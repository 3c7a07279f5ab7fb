/// Tiles of contiguous tensors in the shared memory of Hopper GPUs: up to 64 positions of an image, of some channels.
#pragma once

#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper.h"

namespace fusedsc::gpu::hopper {

/// How an image's positions are cut into tiles.
struct PlanesTiling {
  int positions = 0;                  ///< of an image
  int parts = 1, part_positions = 0;  ///< tiles of an image, and positions of each but the last
  int together_log2 = 0;              ///< planes that are whole runs of 16 bytes together
};

struct PlanesParameters : PointwiseParameters {
  PlanesTiling tiling;
  Divisor parts;                             ///< divides by tiling.parts
  int split_advance = 0, group_advance = 0;  ///< of blocks that stay: tiles from one to the next; from group to group
  const void *other_rows = nullptr, *x_rows = nullptr;  ///< as activations_rows
};

/// A tensor, for tiles of both kinds.
struct PlanesSource {
  const TensorMap& map;
  const void* data;
  int channels;
};

FUSEDSC_DEVICE std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

/// Of planes that are whole runs of 16 bytes, in boxes by TMA: each channel has rows of 128 bytes, one of
/// 64 positions of 16 bits, or two of 32 floats.
template <class T>
class PlanesBox {
 public:
  static constexpr bool kWholeImages = false, kThreadsStore = false;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kHalves = kSize / 2;
  static constexpr int kColumns = kTileRows / kHalves;  ///< positions of a row
  static constexpr int kRowBytes = 128;

  /// `thread`: of the warpgroup, each of which has 16 of a product's 64 rows.
  FUSEDSC_DEVICE PlanesBox(const PlanesTiling& tiling, int thread, int /*part*/)
      : tiling_(tiling), lane_(thread % 32), warp_(thread / 32) {}

  /// As it is; what is made of it is worked out where it is asked for: registers that would wait for it are spilled.
  FUSEDSC_DEVICE PlanesBox without_origin() const {
    auto thread = static_cast<std::uint32_t>(warp_ * 32 + lane_);
    hide_origin(thread);
    return {tiling_, static_cast<int>(thread), 0};
  }

  FUSEDSC_HOST_DEVICE static constexpr int bytes(int channels, const PlanesTiling&) {
    return channels * kHalves * kRowBytes;
  }

  /// Which position of the tile the thread's row of sums is, and the row 8 further. Rows of floats are spread such that
  /// reading them meets each bank once.
  FUSEDSC_DEVICE int position(int i) const {
    if constexpr (kSize == 2) {
      auto thread = static_cast<std::uint32_t>(thread_index());
      hide_origin(thread);  // worked out where it is asked for, for a register less in the loop
      return static_cast<int>(thread % kGroupThreads / 32 * 16 + i * 8 + thread % 32 / 4);
    } else return warp_ / 2 * kColumns + column_of_float(i);
  }

  // By one thread.

  FUSEDSC_DEVICE int copied_bytes(const PlanesSource&, int /*channel*/, int channels) const {
    return bytes(channels, tiling_);
  }
  /// Of the image's channels from `channel` on, as many as the map's tiles have.
  FUSEDSC_DEVICE void start_load(unsigned char* tile, const PlanesSource& from, int channel, int channels, int position,
                                 int image, Barrier* barrier) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const ImagePlace place{position + half * kColumns, channel, 0, image};
      hopper::start_load(tile + half * channels * kRowBytes, from.map, place, barrier);
    }
  }
  FUSEDSC_DEVICE void start_store(const TensorMap& map, void* /*data*/, int /*all_channels*/, const unsigned char* tile,
                                  int channel, int channels, int position, int image) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int first = position + half * kColumns;
      if (first >= tiling_.positions) break;
      hopper::start_store(map, {first, channel, 0, image}, tile + half * channels * kRowBytes);
    }
  }

  // By all threads of a group, of a tile of so many channels.

  /// What a product takes of the values of k from `k` on, floats as they are in memory (round_pieces()). Beyond the
  /// last channel there are zeros.
  FUSEDSC_DEVICE void load_rows(const unsigned char* tile, int channels, int k, int /*existing*/,
                                std::uint32_t (&to)[4]) const {
    if constexpr (kSize == 2) {
      const int row = k + lane_ / 16 * 8 + lane_ % 8;
      load_matrices<true>(tile + place_of_run<kRowBytes>(row, warp_ * 2 + lane_ / 8 % 2), to);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = bits_of(*at(tile, channels, k + lane_ % 4 + i / 2 * 4, i % 2));
    }
  }

  /// As PairsOfTile: pairs of the 8 channels from `channel` on, then of the next 8. Zeros where no position exists.
  FUSEDSC_DEVICE void read(const unsigned char* tile, int channels, int channel, const bool (&)[2],
                           Pair<T> (&to)[4]) const {
    if constexpr (kSize == 2) {
      load_rows(tile, channels, channel, channels, to);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = channel + i / 2 * 8 + lane_ % 4 * 2;
        to[i] = {{*at(tile, channels, first, i % 2), *at(tile, channels, first + 1, i % 2)}};
      }
    }
  }

  /// Likewise.
  FUSEDSC_DEVICE void store(unsigned char* tile, int channels, int channel, const bool (&)[2],
                            const float (&values)[8]) const {
    if constexpr (kSize == 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(values[2 * i], values[2 * i + 1], T());
      const int row = channel + lane_ / 16 * 8 + lane_ % 8;
      store_matrices<true>(tile + place_of_run<kRowBytes>(row, warp_ * 2 + lane_ / 8 % 2), words);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = channel + i / 4 * 8 + lane_ % 4 * 2 + i % 2;
        *const_cast<float*>(at(tile, channels, row, i / 2 % 2)) = values[i];
      }
    }
  }

 private:
  FUSEDSC_DEVICE int column_of_float(int i) const { return warp_ % 2 * 8 + i * 4 + lane_ / 16 * 16 + lane_ / 4 % 4; }

  FUSEDSC_DEVICE const float* at(const unsigned char* tile, int channels, int channel, int i) const {
    const int column = column_of_float(i), row = warp_ / 2 * channels + channel;
    return reinterpret_cast<const float*>(tile + place_of_run<kRowBytes>(row, column / 4) + column % 4 * 4);
  }

  const PlanesTiling& tiling_;
  int lane_, warp_;
};

/// Of any planes, if all positions of an image lie in one block: some neighbouring channels are one run of bytes, and
/// come and go as they are. The groups of a block share them. Where planes are whole pairs of 16-bit elements, a thread
/// has two neighbouring positions, which it reads and writes together; its rows are spread such that, of planes with
/// an odd number of runs of 8 bytes, reading them meets each bank once.
template <class T>
class PlanesRun {
 public:
  static constexpr bool kWholeImages = true;
  static constexpr int kSize = static_cast<int>(sizeof(T));

  FUSEDSC_DEVICE PlanesRun(const PlanesTiling& tiling, int thread, int part)
      : tiling_(tiling),
        column_(thread % 4),
        has_pairs_(kSize == 2 && tiling.positions % 2 == 0),
        row_(has_pairs_ ? thread / 32 * 8 + thread % 16 / 4 * 2 + thread % 32 / 16 * 32
                        : thread / 32 * 16 + thread % 32 / 4),
        first_(part * tiling.part_positions + row_) {}

  /// Threads without a position read behind the last channel, what nobody uses: nor may a copy be on its way there.
  FUSEDSC_HOST_DEVICE static constexpr int bytes(int channels, const PlanesTiling& tiling) {
    const int rows = (tiling.parts - 1) * tiling.part_positions + kTileRows;
    return (((channels - 1) * tiling.positions + rows) * kSize + 127) / 128 * 128;
  }

  FUSEDSC_DEVICE int position(int i) const { return row_ + (has_pairs_ ? i : i * 8); }

  FUSEDSC_DEVICE int copied_bytes(const PlanesSource& from, int channel, int channels) const {
    return run_bytes(from.channels, channel, channels);
  }
  FUSEDSC_DEVICE void start_load(unsigned char* tile, const PlanesSource& from, int channel, int channels,
                                 int /*position*/, int image, Barrier* barrier) const {
    hopper::start_load(tile, static_cast<const unsigned char*>(from.data) + place_of(from.channels, channel, image),
                       run_bytes(from.channels, channel, channels), barrier);
  }
  FUSEDSC_DEVICE void start_store(const TensorMap& /*map*/, void* data, int all_channels, const unsigned char* tile,
                                  int channel, int channels, int /*position*/, int image) const {
    hopper::start_store(static_cast<unsigned char*>(data) + place_of(all_channels, channel, image), tile,
                        run_bytes(all_channels, channel, channels));
  }

  FUSEDSC_DEVICE void load_rows(const unsigned char* tile, int /*channels*/, int k, int existing,
                                std::uint32_t (&to)[4]) const {
    if constexpr (kSize == 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = k + i / 2 * 8 + column_ * 2;
        to[i] = channel < existing ? pair(tile, channel, i % 2) : 0;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = k + i / 2 * 4 + column_;
        to[i] = channel < existing ? bits_of(*at(tile, channel, i % 2)) : 0;
      }
    }
  }
  /// Likewise of a piece of k after the other, of a tile of which `existing` channels exist.
  template <int kPieces>
  FUSEDSC_DEVICE void load_pieces(const unsigned char* tile, int channels, int existing,
                                  std::uint32_t (&to)[kPieces][4]) const {
    constexpr int kPiece = 32 / kSize;
    if constexpr (kSize == 2) {
      if (has_pairs_) {
#pragma unroll
        for (int i = 0; i < 2 * kPieces; ++i) {
          const int channel = i * 8 + column_ * 2;
          load_pairs(tile, channel, channel < existing, &to[i / 2][i % 2 * 2]);
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) load_rows(tile, channels, i * kPiece, existing, to[i]);
  }

  FUSEDSC_DEVICE void read(const unsigned char* tile, int /*channels*/, int channel, const bool (&exists)[2],
                           Pair<T> (&to)[4]) const {
    if constexpr (kSize == 2) {
      if (has_pairs_) {
#pragma unroll
        for (int i = 0; i < 2; ++i) load_pairs(tile, channel + i * 8 + column_ * 2, exists[0], to + i * 2);
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = exists[i % 2] ? pair(tile, channel + i / 2 * 8 + column_ * 2, i % 2) : Pair<T>{};
    }
  }

  FUSEDSC_DEVICE void store(unsigned char* tile, int /*channels*/, int channel, const bool (&exists)[2],
                            const float (&values)[8]) const {
    if constexpr (kSize == 2) {
      if (has_pairs_) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = i / 2 * 4 + i % 2;
          if (exists[0])
            *word(tile, channel + i / 2 * 8 + column_ * 2 + i % 2) = to_bits(values[first], values[first + 2], T());
        }
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!exists[i / 2 % 2]) continue;
      from_accumulator(values[i], *const_cast<T*>(at(tile, channel + i / 4 * 8 + column_ * 2 + i % 2, i / 2 % 2)));
    }
  }

 private:
  FUSEDSC_DEVICE int run_bytes(int all_channels, int channel, int channels) const {
    return least(all_channels - channel, channels) * tiling_.positions * kSize;
  }
  FUSEDSC_DEVICE std::int64_t place_of(int all_channels, int channel, int image) const {
    return (std::int64_t{image} * all_channels + channel) * tiling_.positions * kSize;
  }
  FUSEDSC_DEVICE const T* at(const unsigned char* tile, int channel, int i) const {
    return reinterpret_cast<const T*>(tile) + channel * tiling_.positions + first_ + i * 8;
  }
  FUSEDSC_DEVICE Pair<T> pair(const unsigned char* tile, int channel, int i) const {
    const T *first = at(tile, channel, i), *second = first + tiling_.positions;
    if constexpr (kSize == 2) return first->bits | static_cast<std::uint32_t>(second->bits) << 16;
    else return {{*first, *second}};
  }

  /// Both positions of the thread.
  FUSEDSC_DEVICE std::uint32_t* word(const unsigned char* tile, int channel) const {
    return reinterpret_cast<std::uint32_t*>(const_cast<T*>(at(tile, channel, 0)));
  }
  /// Pairs of neighbouring channels, of one position and of the next.
  FUSEDSC_DEVICE void load_pairs(const unsigned char* tile, int channel, bool exists, std::uint32_t* to) const {
    const std::uint32_t first = exists ? *word(tile, channel) : 0, second = exists ? *word(tile, channel + 1) : 0;
    to[0] = (first & 0xffff) | second << 16;
    to[1] = first >> 16 | (second & 0xffff0000);
  }

  const PlanesTiling& tiling_;
  int column_;
  bool has_pairs_;
  int row_, first_;
};

}  // namespace fusedsc::gpu::hopper
