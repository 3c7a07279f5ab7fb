/// Pointwise weight gradients by teams of warps on Hopper GPUs: an operand's tiles as they lie in block memory, and how
/// a warp reads what its products (mma.sync) take. Which channels are an instruction's rows, and which positions its
/// values of k, is free: they are chosen such that a lane reads 16 bytes at once, from other banks than its neighbours.
///
/// Of each 32 channels a lane has those from base + 0 to base + 3, for g = lane / 4 and in most cases base = 4g: rows g
/// and g + 8 of the first instruction's 16, then of the second's; columns g of four instructions.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper.h"
#include "fusedsc/common/gpu/wave_product.h"

namespace fusedsc::gpu::hopper {

/// Of 32 channels, the first of the four that g = 0 to 7 has.
FUSEDSC_DEVICE int first_of_four(int g, int phases) { return phases == 8 ? g % 4 * 8 + g / 4 * 4 : 4 * g; }

/// Rows of 128 bytes, with exchanged runs (hopper.h). Channels inner: blocks of 32 channels (of float), a row for each
/// position. Else a row for each channel, of 128 bytes of positions.
///
/// Maps whose rows are no multiples of 16 bytes are copied as if two, four or eight channels ("phases") were one row:
/// first all channels 0 of these, then all channels 1, and so on; behind a row's end are then other channels.
template <class T, bool kChannelsInner, int kBlocks, int kChannels, int kDepth>
class TeamsOperand {
 public:
  static constexpr int kBytes = kChannels * kDepth * static_cast<int>(sizeof(T));
  static constexpr int kWords = kChannelsInner ? 2 : 4;      ///< that a lane has of a channel in a group of positions
  static constexpr int kPositions = 4 / sizeof(T);           ///< in a word
  static constexpr int kGroupDepth = kWords * 4 * kPositions;
  static_assert(kChannelsInner ? sizeof(T) == 4 && kDepth % 8 == 0 : kDepth * sizeof(T) == 128);

  using BlockWords = std::uint32_t[4][kWords];
  using Words = BlockWords[kBlocks];

  /// `first`: of the warp's channels in the tile.
  FUSEDSC_DEVICE TeamsOperand(int first, int phases) : phases_(phases) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
    base_ = first_of_four(g, phases);
    if constexpr (kChannelsInner) {
      offsets_[0] = first / 32 * kBlockBytes + 2 * t * 128 + (g ^ 2 * t) * 16;
    } else {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int channel = first + block * 32 + base_ + j;
          const int row = (channel & (phases - 1)) * (kChannels / phases) + channel / phases;
          offsets_[block * 4 + j] = row * 128 + (run_of(0) ^ (row & 7)) * 16;
        }
      }
    }
  }

  /// The first of the lane's four channels.
  FUSEDSC_DEVICE int base() const { return base_; }

  /// Of one block of 32 channels.
  FUSEDSC_DEVICE void read(const unsigned char* tile, int group, int block, BlockWords& to) const {
    if constexpr (kChannelsInner) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto run = load<4>(reinterpret_cast<const float*>(tile + block * kBlockBytes + group * 1024 + i * 128 +
                                                                (offsets_[0] ^ i * 16)));
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j][i] = run.words[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto run =
            load<4>(reinterpret_cast<const float*>(tile + (offsets_[block * 4 + j] ^ group * second_run())));
#pragma unroll
        for (int i = 0; i < 4; ++i) to[j][i] = run.words[i];
      }
    }
  }

  /// Of a lane's word, the first position, in the tile.
  FUSEDSC_DEVICE int position(int group, int word) const {
    if constexpr (kChannelsInner) return group * 8 + thread_index() % 4 * 2 + word;
    else return (run_of(group) * 4 + word) * kPositions;
  }
  /// The first position of all lanes.
  FUSEDSC_DEVICE int first_position(int group) const {
    if constexpr (kChannelsInner) return group * 8;
    else return group * (second_run() / 4) * kPositions;
  }

  /// Zeros in the place of what lies behind `valid` positions.
  FUSEDSC_DEVICE void mask(int group, int valid, BlockWords& words) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int left = valid - position(group, i);
      const std::uint32_t kept = left >= kPositions ? 0xffffffffu : left > 0 ? 0xffffu : 0u;
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j][i] &= kept;
    }
  }

 private:
  static constexpr int kBlockBytes = kDepth * 128;

  /// Of the eight runs of 16 bytes of a row, the one that a lane reads; chosen by how far apart the rows of neighbouring
  /// g lie, so that these fall on the other runs.
  FUSEDSC_DEVICE int run_of(int group) const {
    const int t = thread_index() % 4;
    return (phases_ == 1 ? t : phases_ == 2 ? t % 2 + t / 2 * 4 : 2 * t) ^ group * second_run() / 16;
  }
  FUSEDSC_DEVICE int second_run() const { return phases_ == 1 ? 64 : phases_ == 2 ? 32 : 16; }

  int base_, phases_;
  int offsets_[kChannelsInner ? 1 : kBlocks * 4];
};

/// Words as products take them: floats are rounded to TensorFloat-32.
template <class T, int kWords>
FUSEDSC_DEVICE void round_factors(std::uint32_t (&words)[4][kWords]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[j][i] = to_tf32(__builtin_bit_cast(float, words[j][i]));
    }
  }
}

/// The values that words hold, of four channels.
template <class T, int kWords>
using FactorValues = float[4][kWords * 4 / sizeof(T)];

template <class T, int kWords>
FUSEDSC_DEVICE void to_values(const std::uint32_t (&words)[4][kWords], FactorValues<T, kWords>& values) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) values[j][i] = __builtin_bit_cast(float, words[j][i]);
      else to_floats(words[j][i], values[j][2 * i], values[j][2 * i + 1], T());
    }
  }
}

template <class T, int kWords>
FUSEDSC_DEVICE void to_words(const FactorValues<T, kWords>& values, std::uint32_t (&words)[4][kWords]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(T) == 4) words[j][i] = __builtin_bit_cast(std::uint32_t, values[j][i]);
      else words[j][i] = to_bits(values[j][2 * i], values[j][2 * i + 1], T());
    }
  }
}

}  // namespace fusedsc::gpu::hopper
