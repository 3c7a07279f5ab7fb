/// Products of matrices by warps that need neither each other nor shared memory for what they read and write: of 16-bit
/// elements, or of floats whose factors are rounded to TensorFloat-32. Instructions take any order of k if both factors
/// have it, and any order of rows: with those chosen here a thread's part of an activation is 16 bytes as they lie in
/// memory, and its results are neighbouring channels. Rows of an instruction are channels of the result, columns
/// positions. Instructions for floats have half the k, so that 16 bytes of a position make two of them in any type.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_cursor.h"

namespace fusedsc::gpu {

/// What may be fused: nothing; activations that only clamp, of which there is little code; anything.
enum class FragmentFusion { none, clamps, all };
inline constexpr int kFragmentFusions = 3;

/// What a block's shared memory depends on.
struct FragmentShape {
  int depth = 0;
  bool has_other = false;        ///< an operand's prologue has a second tensor
  int channels = 0, extras = 0;  ///< of packed rows: of the result, and tensors that an epilogue reads
};

/// Neighbouring channels that a thread stores at once, at most 16 bytes, of a warp with so many channels.
constexpr int fragment_run(int channels, int bytes) {
  return bytes == 2 && channels % 64 == 0 ? 8 : channels % 32 == 0 ? 4 : 2;
}

/// A warp has 8 * kPositionTiles positions and kColumns channels; kParts warps share the values of k. Of activations
/// kStages chunks of k are under way or in use. kBytes: of an element, 2 or 4.
template <int kPositionTiles_, int kColumns_, int kParts_ = 1, int kStages_ = 4, int kBytes = 2,
          int kThreads_ = kMatrixThreads>
struct FragmentTile {
  static constexpr int kThreads = kThreads_;
  static constexpr int kPositionTiles = kPositionTiles_, kColumns = kColumns_, kParts = kParts_, kStages = kStages_;
  static constexpr int kWarps = kThreads / 32, kRowGroups = kWarps / kParts;
  static constexpr int kWarpRows = 8 * kPositionTiles, kRows = kWarpRows * kRowGroups;
  static constexpr int kDepthRun = 16 / kBytes, kChunkRuns = 4;  ///< of each of four threads, 16 bytes of k:
  static constexpr int kChunk = kDepthRun * kChunkRuns;          ///< values of k
  static constexpr int kRun = fragment_run(kColumns, kBytes);
  static constexpr int kGroup = 8 * kRun, kGroups = kColumns / kGroup;  ///< channels of 8 threads' runs
  static constexpr int kChannelTiles = kColumns / 16;
  static constexpr int kWarpColumns = 1, kWarpChannels = kColumns;  ///< of a block; of a warp
  static constexpr bool kPacked = false, kStreams = false;
  static_assert(kColumns % kGroup == 0 && kWarps % kParts == 0);

  /// As many for each part; values of k beyond the end are 0.
  FUSEDSC_HOST_DEVICE static constexpr int chunks(int depth) {
    return (depth + kParts * kChunk - 1) / (kParts * kChunk) * kParts;
  }
};

/// Where a thread stands: `outer` of an instruction's rows or columns, `inner` of its k, or of its results' columns.
struct FragmentPlace {
  int warp, outer, inner;

  FUSEDSC_DEVICE FragmentPlace()
      : warp(thread_index() / 32), outer(thread_index() % 32 / 4), inner(thread_index() % 4) {}
};

/// use(a constant): whether an operand's prologue has a second tensor, which it has only where it may.
template <bool kMayHaveOther, class Use>
FUSEDSC_DEVICE void with_other(const void* other, const Use& use) {
  if constexpr (kMayHaveOther) {
    if (other != nullptr) return use(std::true_type());
  }
  use(std::false_type());
}

/// 16 bytes in shared memory.
using FragmentWords = Aligned<std::uint32_t, 4>;

/// Elements of a word.
template <class T>
inline constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));

/// A word of such elements, and of numbers.
template <class T>
FUSEDSC_DEVICE std::uint32_t word_of(const float* numbers, T) {
  return to_bits(numbers[0], numbers[1], T());
}
FUSEDSC_DEVICE std::uint32_t word_of(const float* numbers, float) {
  return __builtin_bit_cast(std::uint32_t, *numbers);
}
template <class T>
FUSEDSC_DEVICE void to_numbers(std::uint32_t word, float* to, T) {
  Vector<T, kPerWord<T>>{{word}}.widen(to);
}

/// A word as a factor of a product: floats are rounded to TensorFloat-32.
template <class T>
FUSEDSC_DEVICE std::uint32_t factor_of(std::uint32_t word, T) {
  return word;
}
FUSEDSC_DEVICE std::uint32_t factor_of(std::uint32_t word, float) { return to_tf32(__builtin_bit_cast(float, word)); }
template <class T>
FUSEDSC_DEVICE FragmentWords factors_of(FragmentWords words) {
#pragma unroll
  for (int w = 0; w < 4; ++w) words.elements[w] = factor_of(words.elements[w], T());
  return words;
}

/// A weight in shared memory as instructions take it: [chunk][channel tile][half of k][lane], 16 bytes each. Row g of
/// channel tile i of a group, with g < 8, is channel g * kRun + 2 * i; row g + 8 is the next.
template <class T, class Tile>
class FragmentWeight {
 public:
  static constexpr int kChunkBytes = Tile::kChannelTiles * 2 * 32 * 16;

  FUSEDSC_DEVICE explicit FragmentWeight(void* memory) : words_(static_cast<FragmentWords*>(memory)) {}

  /// Starts copying a weight [channel][k]; there are `channels` and `depth` from the first ones on. A thread copies
  /// runs of two channels each, whose words it then exchanges, where they are, in arrange().
  FUSEDSC_DEVICE void start(const T* from, std::int64_t channel_stride, int channels, int depth) const {
    for_each_pair(depth, [&](FragmentWords* first, FragmentWords* second, int channel, int k) {
      const bool has = channel < channels && k < depth;
      const T* const run = has ? from + channel * channel_stride + k : from;
      start_copy<16>(first, run, has);
      start_copy<16>(second, has ? run + channel_stride : run, has);
    });
  }
  /// Once the thread's copies have arrived.
  FUSEDSC_DEVICE void arrange(int depth) const {
    for_each_pair(depth, [](FragmentWords* first, FragmentWords* second, int, int) {
      const FragmentWords a = factors_of<T>(*first), b = factors_of<T>(*second);
      *first = {a.elements[0], b.elements[0], a.elements[1], b.elements[1]};
      *second = {a.elements[2], b.elements[2], a.elements[3], b.elements[3]};
    });
  }

  /// Likewise of a weight [k][channel], of which a thread copies and transposes squares of 16 bytes.
  FUSEDSC_DEVICE void start_transposed(const T* from, std::int64_t depth_stride, int channels, int depth) const {
    for_each_square(depth, [&](int chunk, int channel, int run) {
      const int k = chunk * Tile::kChunk + run * kSide;
      const T* const corner = from + k * depth_stride + channel;
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        const bool has = channel < channels && k + r < depth;
        start_copy<16>(place(chunk, channel + r / 2 * 2, run, r % 2), has ? corner + r * depth_stride : from, has);
      }
    });
  }
  FUSEDSC_DEVICE void arrange_transposed(int depth) const {
    for_each_square(depth, [&](int chunk, int channel, int run) {
      FragmentWords rows[kSide];
#pragma unroll
      for (int r = 0; r < kSide; ++r) rows[r] = factors_of<T>(*place(chunk, channel + r / 2 * 2, run, r % 2));
#pragma unroll
      for (int pair = 0; pair < kSide / 2; ++pair) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          FragmentWords words;
#pragma unroll
          for (int w = 0; w < 2; ++w) {
            words.elements[2 * w] = transposed(rows, 2 * half + w, 2 * pair);
            words.elements[2 * w + 1] = transposed(rows, 2 * half + w, 2 * pair + 1);
          }
          *place(chunk, channel + 2 * pair, run, half) = words;
        }
      }
    });
  }

  FUSEDSC_DEVICE FragmentWords read(int chunk, int tile, int half) const {
    return words_[((chunk * Tile::kChannelTiles + tile) * 2 + half) * 32 + thread_index() % 32];
  }

 protected:
  static constexpr int kSide = Tile::kDepthRun;  ///< of a square

  /// Of a square's rows of k the word that has `word` of a column.
  FUSEDSC_DEVICE static std::uint32_t transposed(const FragmentWords (&rows)[kSide], int word, int column) {
    if constexpr (sizeof(T) == 4) {
      return rows[word].elements[column];
    } else {
      const std::uint32_t first = rows[2 * word].elements[column / 2], second = rows[2 * word + 1].elements[column / 2];
      return column % 2 == 0 ? (first & 0xffffu) | second << 16 : first >> 16 | (second & 0xffff0000u);
    }
  }

  /// Of an even channel and the next.
  FUSEDSC_DEVICE FragmentWords* place(int chunk, int channel, int run, int half) const {
    const int tile = channel / Tile::kGroup * (Tile::kRun / 2) + channel % Tile::kRun / 2;
    const int lane = channel / Tile::kRun % 8 * 4 + run;
    return words_ + ((chunk * Tile::kChannelTiles + tile) * 2 + half) * 32 + lane;
  }

  template <class Use>
  FUSEDSC_DEVICE void for_each_square(int depth, const Use& use) const {
    constexpr int kSquares = Tile::kColumns / kSide, kOfChunk = kSquares * Tile::kChunkRuns;
    for (int i = thread_index(); i < kOfChunk * Tile::chunks(depth); i += Tile::kThreads) {
      use(i / kOfChunk, i / Tile::kChunkRuns % kSquares * kSide, i % Tile::kChunkRuns);
    }
  }

  /// Each lane's, so that neighbours fall on different banks.
  template <class Use>
  FUSEDSC_DEVICE void for_each_pair(int depth, const Use& use) const {
    constexpr int kOfChunk = Tile::kChannelTiles * 32;
    for (int i = thread_index(); i < kOfChunk * Tile::chunks(depth); i += Tile::kThreads) {
      const int lane = i % 32, tile = i / 32 % Tile::kChannelTiles, chunk = i / kOfChunk;
      const int channel = tile / (Tile::kRun / 2) * Tile::kGroup + lane / 4 * Tile::kRun + tile % (Tile::kRun / 2) * 2;
      FragmentWords* const first = words_ + (chunk * Tile::kChannelTiles + tile) * 64 + lane;
      use(first, first + 32, channel, chunk * Tile::kChunk + lane % 4 * Tile::kDepthRun);
    }
  }

 private:
  FragmentWords* words_;
};

}  // namespace fusedsc::gpu
