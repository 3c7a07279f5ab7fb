/// Pointwise weight gradients by sliced-K over warps on Hopper GPUs: an operand's tiles as they lie in shared memory,
/// and how a warp reads what its products (mma.sync) take. Which channels are an instruction's rows, and which
/// positions its values of k, is free: they are chosen such that a lane reads 16 bytes at once, from other banks than
/// its neighbours.
///
/// Of each 32 channels a lane has those from base + 0 to base + 3, for g = lane / 4 and in most cases base = 4g: rows g
/// and g + 8 of the first instruction's 16, then of the second's; columns g of four instructions.
#pragma once

#include <type_traits>

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_tiles.h"
#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/products/wave_product.h"

namespace fusedsc::gpu::hopper {

/// How a tile lies in shared memory: in rows of 128 bytes, with swizzled runs (hopper.h).
enum class WarpSlicedKRows {
  channels,   ///< channels inner: blocks of 32 channels (of float), a row for each position
  positions,  ///< a row for each channel, 128 bytes of positions
  /// Likewise, of maps that are no multiples of 16 bytes: two, four or eight channels ("phases") are a row to
  /// TMA. First lie all channels 0 of these, then all channels 1, and so on, from the multiple of 16 bytes on where
  /// their first position is, or before it; behind a map are other channels.
  phases,
};

/// Positions of a tile. With phases, what lies before the first one leaves less room.
template <class T>
constexpr int warp_sliced_k_depth(WarpSlicedKRows rows) {
  return (rows == WarpSlicedKRows::phases ? 112 : 128) / static_cast<int>(sizeof(T));
}

/// Of a phase, the bytes before its first position.
template <class T>
FUSEDSC_DEVICE int warp_sliced_k_shift(int phase, int positions) {
  return phase * positions * static_cast<int>(sizeof(T)) & 15;
}

/// Which runs of 16 bytes have the words that a lane reads of its rows, with phases, in a group of positions: the same
/// for both operands.
template <class T>
struct WarpSlicedKPhaseRuns {
  int own[4][4], next[2][4];  ///< of a channel (next: of the second and fourth one, the word behind), times 16
  bool has_halves;

  FUSEDSC_DEVICE WarpSlicedKPhaseRuns(int group, int phases, int positions) : has_halves(phases == 8) {
    const int lane = thread_index() % 32, base = first_of_four(lane / 4, phases), t = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int word = t + (warp_sliced_k_shift<T>((base + j) & (phases - 1), positions) >> 2);
      const int swizzle = ((base + j) >> (phases == 8 ? 3 : phases == 4 ? 2 : 1) & 7) << 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        own[j][i] = ((word >> 2) + group * 4 + i) << 4 ^ swizzle;
        if (sizeof(T) == 2 && j % 2 == 1) next[j / 2][i] = (((word + 1) >> 2) + group * 4 + i) << 4 ^ swizzle;
      }
    }
  }
};

/// A warp's part of a tile of kChannels channels: kBlocks times 32 of them.
template <class T, WarpSlicedKRows kRows, int kBlocks, int kChannels, int kDepth>
class WarpSlicedKOperand {
 public:
  static constexpr bool kChannelsInner = kRows == WarpSlicedKRows::channels;
  static constexpr int kBytes = kChannels * (kChannelsInner ? kDepth * static_cast<int>(sizeof(T)) : 128);
  static constexpr int kWords = kChannelsInner ? 2 : 4;  ///< that a lane has of a channel in a group of positions
  static constexpr int kPositions = 4 / sizeof(T);       ///< in a word
  static constexpr int kProductDepth = 8 * kPositions, kGroupDepth = kWords * 4 * kPositions;
  static constexpr int kGroups = (kDepth + kGroupDepth - 1) / kGroupDepth;
  static_assert(kChannelsInner ? sizeof(T) == 4 && kDepth % 8 == 0 : kDepth == warp_sliced_k_depth<T>(kRows));

  using BlockWords = std::uint32_t[4][kWords];
  using Words = BlockWords[kBlocks];

  /// `first`: of the warp's channels in the tile. `positions`: of a map.
  FUSEDSC_DEVICE WarpSlicedKOperand(int first, int phases, int positions) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
    base_ = first_of_four(g, phases);
    if constexpr (kChannelsInner) {
      offsets_[0] = first / 32 * kBlockBytes + 2 * t * 128 + (g ^ 2 * t) * 16;
    } else if constexpr (kRows == WarpSlicedKRows::positions) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = first + block * 32 + base_ + j;
          offsets_[block * 4 + j] = row * 128 + (t ^ (row & 7)) * 16;
        }
      }
    } else {
      block_bytes_ = 32 / phases * 128;
      swizzle_ = phases == 8 ? 64 : 0;
      first_block_ = first / 32;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int channel = first + base_ + j, phase = (base_ + j) & (phases - 1);
        const int row = phase * (kChannels / phases) + channel / phases;
        offsets_[j] = row * 128 + ((t + warp_sliced_k_shift<T>(phase, positions) / 4) & 3) * 4;
        if constexpr (sizeof(T) == 2)
          next_offsets_[j] = row * 128 + ((t + warp_sliced_k_shift<T>(phase, positions) / 4 + 1) & 3) * 4;
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
    } else if constexpr (kRows == WarpSlicedKRows::positions) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto run = load<4>(reinterpret_cast<const float*>(tile + (offsets_[block * 4 + j] ^ group * 64)));
#pragma unroll
        for (int i = 0; i < 4; ++i) to[j][i] = run.words[i];
      }
    }
  }

  /// Likewise, with phases.
  FUSEDSC_DEVICE void read(const unsigned char* tile, const WarpSlicedKPhaseRuns<T>& runs, int block,
                           BlockWords& to) const {
    const int swizzle = (first_block_ + block) % 2 * swizzle_;
    tile += block * block_bytes_;
    const auto word_at = [&](int place) { return *reinterpret_cast<const std::uint32_t*>(tile + (place ^ swizzle)); };
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[j][i] = word_at(offsets_[j] ^ runs.own[j][i]);
    }
    if (sizeof(T) == 4 || !runs.has_halves) return;
#pragma unroll
    for (int j = 1; j < 4; j += 2) {  // the channel's first position is a word's second half
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[j][i] = to[j][i] >> 16 | word_at(next_offsets_[j] ^ runs.next[j / 2][i]) << 16;
      }
    }
  }

  /// Of a lane's word, the first position, in the tile.
  FUSEDSC_DEVICE static int position(int group, int word) {
    const int t = thread_index() % 4;
    if constexpr (kChannelsInner) return group * 8 + t * 2 + word;
    else if constexpr (kRows == WarpSlicedKRows::positions) return ((group * 4 + t) * 4 + word) * kPositions;
    else return (group * 16 + word * 4 + t) * kPositions;
  }

  /// Whether some lane has a word of a product of a group.
  FUSEDSC_DEVICE static bool has_positions(int group, int product, int valid) {
    const int first = kRows == WarpSlicedKRows::positions ? product * 2 * kPositions : product * kProductDepth;
    return group * kGroupDepth + first < valid;
  }

  /// Zeros in the place of what lies behind `valid` positions.
  FUSEDSC_DEVICE static void mask(int group, int valid, BlockWords& words) {
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

  int base_;
  int offsets_[kRows == WarpSlicedKRows::positions ? kBlocks * 4 : 4];
  // With phases, also of the word behind; from one block of 32 channels to the next, and whether that swizzles runs.
  int next_offsets_[4], block_bytes_, swizzle_, first_block_;
};

/// Words as products take them: floats are rounded to TensorFloat-32.
template <class T, int kWords>
FUSEDSC_DEVICE void round_factors(std::uint32_t (&words)[4][kWords]) {
  if constexpr (std::is_same_v<T, float>) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[j][i] = round_to_tf32(words[j][i]);
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
