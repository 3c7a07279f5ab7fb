/// The operands of products whose weight comes in stages: rows of k in shared memory as instructions read them, 8 by 16
/// bytes at a time (ldmatrix). Of a chunk's 16 words of a row thread `inner` has every fourth, in activations and
/// weight.
#pragma once

#include "fusedsc/common/gpu/products/wave_transpose.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_tile.h"

namespace fusedsc::gpu {

/// A warp has 8 * kPositionTiles positions and kWarpChannels channels; kWarpRows warps lie side by side along positions
/// and the others of a block along channels, each of them kParts warps, which share a stage's chunks out. A stage is
/// kChunks chunks of k, of which kStages are under way or in use. kBytes: of an element.
template <int kPositionTiles_, int kColumns_, int kWarpRows_, int kChunks_, int kStages_, int kBytes, int kParts_ = 1,
          int kThreads_ = kMatrixThreads>
struct StreamedTile {
  static constexpr int kThreads = kThreads_;
  static constexpr int kPositionTiles = kPositionTiles_, kColumns = kColumns_, kStages = kStages_, kChunks = kChunks_;
  static constexpr int kParts = kParts_, kWarps = kThreads / 32, kWarpRows = kWarpRows_,
                       kWarpColumns = kWarps / kParts / kWarpRows;
  static constexpr int kRows = 8 * kPositionTiles * kWarpRows, kWarpChannels = kColumns / kWarpColumns;
  static constexpr int kDepthRun = 16 / kBytes, kChunk = 4 * kDepthRun, kDepth = kChunks * kChunk;
  static constexpr int kRun = fragment_run(kWarpChannels, kBytes);
  static constexpr int kGroup = 8 * kRun, kGroups = kWarpChannels / kGroup, kChannelTiles = kWarpChannels / 16;
  static constexpr bool kPacked = false, kStreams = true;
  static_assert(kWarpChannels % kGroup == 0 && kChunks % kParts == 0 && kWarps == kParts * kWarpRows * kWarpColumns);

  FUSEDSC_HOST_DEVICE static constexpr int steps(int depth) { return (depth + kDepth - 1) / kDepth; }
  /// Warps that share k are neighbours.
  FUSEDSC_DEVICE static int part() { return kParts == 1 ? 0 : thread_index() / 32 % kParts; }
  FUSEDSC_DEVICE static int warp_row() { return thread_index() / 32 / kParts / kWarpColumns; }
  FUSEDSC_DEVICE static int warp_column() { return thread_index() / 32 / kParts % kWarpColumns; }
};

/// How a block's threads copy kRows rows of four times 16 bytes in each chunk of a stage: kStep rows at a time, and, of
/// few rows, kChunkStep chunks.
template <class Tile, int kRows>
struct CopiedRows {
  static constexpr int kStep = [] {
    int step = Tile::kThreads / 4;
    while (kRows % step != 0) step /= 2;
    return step;
  }();
  static constexpr int kCount = kRows / kStep, kChunkStep = Tile::kThreads / 4 / kStep;
  static_assert(kStep >= 8);

  FUSEDSC_DEVICE static int row() { return kChunkStep == 1 ? thread_index() / 4 : thread_index() / 4 % kStep; }
  FUSEDSC_DEVICE static int piece() { return thread_index() % 4; }
  /// use(chunk of the stage that is the thread's, counted from its first one): others do not exist.
  template <class Use>
  FUSEDSC_DEVICE static void for_each_chunk(const Use& use) {
#pragma unroll
    for (int i = 0; i < Tile::kChunks; i += kChunkStep) {
      if (Tile::kChunks % kChunkStep == 0 || first_chunk() + i < Tile::kChunks) use(i);
    }
  }
  FUSEDSC_DEVICE static int first_chunk() { return kChunkStep == 1 ? 0 : thread_index() / 4 / kStep; }
};

/// Rows of 64 bytes, a chunk of k, swizzled so that eight neighbouring rows' 16 bytes fall on different banks.
FUSEDSC_DEVICE int chunk_row_place(int row, int piece) { return row * 64 + (piece ^ (row >> 1 & 3)) * 16; }

/// Activations, [chunk][position]: a thread copies every fourth 16 bytes of some positions.
template <class T, class Tile>
class StreamedRows {
 public:
  static constexpr int kChunkBytes = Tile::kRows * 64, kStageBytes = Tile::kChunks * kChunkBytes;

  FUSEDSC_DEVICE StreamedRows(const PointwiseMatrix& matrix, int group, unsigned char* memory, int stage_bytes)
      : stride_(matrix.first),
        base_(static_cast<const T*>(matrix.data) + group * matrix.group + first_k()),
        memory_(memory),
        stage_bytes_(stage_bytes) {}

  /// From position `first` on, of which so many are left.
  FUSEDSC_DEVICE void aim(int first, int left) {
    from_ = base_ + (first + Copied::row()) * stride_;
    left_ = left - Copied::row();
  }
  /// Values of k from `k` on, of `depth`. Where there are none, an address is made but nothing is read.
  FUSEDSC_DEVICE void start(int slot, int k, int depth) const {
    unsigned char* const to = memory_ + slot * stage_bytes_ + Copied::first_chunk() * kChunkBytes +
                              chunk_row_place(Copied::row(), Copied::piece());
#pragma unroll
    for (int i = 0; i < Copied::kCount; ++i) {
      const T* const from = from_ + k + i * (Copied::kStep * stride_);
      Copied::for_each_chunk([&](int chunk) {
        const int left = k + chunk * Tile::kChunk + first_k() < depth ? left_ : 0;
        start_copy<16>(to + chunk * kChunkBytes + i * Copied::kStep * 64, from + chunk * Tile::kChunk,
                       Copied::kStep * i < left);
      });
    }
  }
  /// Of the warp's positions.
  FUSEDSC_DEVICE void read(int slot, int chunk, FragmentWords (&to)[Tile::kPositionTiles]) const {
    const int lane = thread_index() % 32, first = Tile::warp_row() * 8 * Tile::kPositionTiles;
    const unsigned char* const from =
        memory_ + slot * stage_bytes_ + chunk * kChunkBytes + chunk_row_place(first + lane % 8, lane / 8);
#pragma unroll
    for (int i = 0; i < Tile::kPositionTiles; ++i) load_matrices_of_words(from + i * 8 * 64, to[i].elements);
  }

 private:
  using Copied = CopiedRows<Tile, Tile::kRows>;

  FUSEDSC_DEVICE static int first_k() {
    return Copied::first_chunk() * Tile::kChunk + Copied::piece() * Tile::kDepthRun;
  }

  std::int64_t stride_;
  const T* base_;
  unsigned char* memory_;
  int stage_bytes_;
  const T* from_ = nullptr;
  int left_ = 0;
};

/// The weight of a block's channels. kRaw: [chunk][k][channel], as a weight [k][channel] of 16 bits lies in memory,
/// which instructions transpose as they read it; else [chunk][row of an instruction][k], 16 rows of each channel tile:
/// of row g < 8 of a group's tile i the channel is g * kRun + 2 * i, of row g + 8 the next.
template <class T, class Tile, bool kDepthFirst>
class StreamedWeight {
 public:
  static constexpr bool kRaw = kDepthFirst && sizeof(T) == 2, kArranges = sizeof(T) == 4;
  static constexpr int kChunkBytes = Tile::kColumns * 64, kStageBytes = Tile::kChunks * kChunkBytes;

  /// `stride`: from a channel to the next, or from a k.
  FUSEDSC_DEVICE StreamedWeight(const T* from, std::int64_t stride, int channels, unsigned char* memory,
                                int stage_bytes)
      : stride_(stride), memory_(memory), stage_bytes_(stage_bytes) {
    const int channel = kRaw ? piece() * 8 : kDepthFirst ? square_channel() : channel_of_row(row());
    first_k_ = first_chunk() * Tile::kChunk + (kRaw          ? row()
                                               : kDepthFirst ? 4 * square_run()
                                                             : piece() * Tile::kDepthRun);
    from_ = kDepthFirst ? from + first_k_ * stride + channel : from + channel * stride + first_k_;
    left_ = channels - channel;
  }

  /// Where there is nothing, an address is made but nothing is read.
  FUSEDSC_DEVICE void start(int slot, int k, int depth) const {
    unsigned char* const to = memory_ + slot * stage_bytes_ + first_chunk() * kChunkBytes;
    if constexpr (kDepthFirst) {
      const T* const from = from_ + k * stride_;
      for_each_chunk([&](int chunk) {
        const int depth_left = depth - (k + chunk * Tile::kChunk + first_k_);
        start_depth_first(to + chunk * kChunkBytes, from + chunk * (Tile::kChunk * stride_), depth_left);
      });
    } else {
#pragma unroll
      for (int i = 0; i < Copied::kCount; ++i) {
        const int further = further_channel(i);
        const T* const from = from_ + k + further * stride_;
        for_each_chunk([&](int chunk) {
          const int left = k + chunk * Tile::kChunk + first_k_ < depth ? left_ : 0;
          start_copy<16>(to + chunk * kChunkBytes + chunk_row_place(row(), piece()) + i * Copied::kStep * 64,
                         from + chunk * Tile::kChunk, further < left);
        });
      }
    }
  }

  /// Once the thread's own copies of a stage have arrived: rounds them, and transposes those of a weight [k][channel].
  FUSEDSC_DEVICE void arrange(int slot) const {
    if constexpr (kArranges) {
      for_each_chunk([&](int chunk) {
        unsigned char* const stage = memory_ + slot * stage_bytes_ + (first_chunk() + chunk) * kChunkBytes;
        if constexpr (kDepthFirst) {
          if (square_run() >= 4) return;
          FragmentWords rows[4];
#pragma unroll
          for (int r = 0; r < 4; ++r) rows[r] = factors_of<T>(*square_place(stage, r));
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            *square_place(stage, r) = {rows[0].elements[r], rows[1].elements[r], rows[2].elements[r],
                                       rows[3].elements[r]};
          }
        } else {
#pragma unroll
          for (int i = 0; i < Copied::kCount; ++i) {
            auto* const words =
                reinterpret_cast<FragmentWords*>(stage + chunk_row_place(row() + Copied::kStep * i, piece()));
            *words = factors_of<T>(*words);
          }
        }
      });
    }
  }

  /// What a channel tile of the warp and half a chunk is multiplied with; a chunk of a stage from reader() on.
  struct Reader {
    const unsigned char* from;
    int first_tile;  ///< of the warp, in the block

    FUSEDSC_DEVICE FragmentWords read(int tile, int half) const {
      const int lane = thread_index() % 32, matrix = lane / 8;
      FragmentWords words;
      if constexpr (kRaw) {
        const int k = 16 * half + matrix / 2 * 8 + lane % 8, octet = 2 * (first_tile + tile) + matrix % 2;
        load_transposed(from + raw_place(k, octet), words.elements, T());
      } else {
        const int row = (first_tile + tile) * 16 + matrix % 2 * 8 + lane % 8;
        load_matrices_of_words(from + chunk_row_place(row, 2 * half + matrix / 2), words.elements);
      }
      return words;
    }
  };
  FUSEDSC_DEVICE Reader reader(int slot, int chunk) const {
    return {memory_ + slot * stage_bytes_ + chunk * kChunkBytes, Tile::warp_column() * Tile::kChannelTiles};
  }

 private:
  FUSEDSC_DEVICE void start_depth_first(unsigned char* to, const T* from, int depth_left) const {
    if constexpr (kRaw) {
      const int left = depth_left > 0 ? left_ : 0;
#pragma unroll
      for (int i = 0; i < (Tile::kColumns + 31) / 32; ++i) {
        if (Tile::kColumns % 32 != 0 && piece() + 4 * i >= Tile::kColumns / 8) continue;
        start_copy<16>(to + raw_place(row(), piece() + 4 * i), from + 32 * i, 32 * i < left);
      }
    } else if (square_run() < 4) {
      const int left = left_ > 0 ? depth_left : 0;
#pragma unroll
      for (int r = 0; r < 4; ++r) start_copy<16>(square_place(to, r), from + r * stride_, r < left);
    }
  }

  /// Rows are channels, or of a raw weight values of k.
  using Copied = CopiedRows<Tile, kRaw ? Tile::kChunk : Tile::kColumns>;
  static constexpr bool kSquares = kDepthFirst && !kRaw;
  /// Of squares: warps beyond the fourth have other chunks.
  static constexpr int kSquareThreads = Tile::kThreads > kMatrixThreads ? Tile::kColumns : Tile::kThreads,
                       kSquareSets = Tile::kThreads / kSquareThreads;

  FUSEDSC_DEVICE static int row() { return Copied::row(); }
  FUSEDSC_DEVICE static int piece() { return Copied::piece(); }
  FUSEDSC_DEVICE static int first_chunk() {
    if constexpr (!kSquares) return Copied::first_chunk();
    else return kSquareSets == 1 ? 0 : thread_index() / kSquareThreads;
  }
  /// As CopiedRows'.
  template <class Use>
  FUSEDSC_DEVICE static void for_each_chunk(const Use& use) {
    if constexpr (!kSquares) {
      Copied::for_each_chunk(use);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::kChunks; i += kSquareSets) {
        if (kSquareSets == 1 || (thread_index() < kSquareSets * kSquareThreads && first_chunk() + i < Tile::kChunks)) {
          use(i);
        }
      }
    }
  }

  /// From the channel of a thread's first row to that of its i-th.
  FUSEDSC_DEVICE static constexpr int further_channel(int i) {
    constexpr int kStep = Copied::kStep;
    if constexpr (kStep % Tile::kGroup == 0) {
      return i * kStep;
    } else {
      constexpr int kOfGroup = Tile::kGroup / kStep;  // steps, of which channels are this far apart
      return i / kOfGroup * Tile::kGroup + i % kOfGroup * (kStep / 8);
    }
  }

  FUSEDSC_DEVICE static int channel_of_row(int row) {
    const int tile = row / 16;
    return tile / (Tile::kRun / 2) * Tile::kGroup + row % 8 * Tile::kRun + tile % (Tile::kRun / 2) * 2 + row / 8 % 2;
  }
  FUSEDSC_DEVICE static int row_of_channel(int channel) {
    const int tile = channel / Tile::kGroup * (Tile::kRun / 2) + channel % Tile::kRun / 2;
    return tile * 16 + channel % 2 * 8 + channel / Tile::kRun % 8;
  }

  /// Eight channels from 8 * octet on, swizzled so that eight neighbouring k fall on different banks.
  FUSEDSC_DEVICE static int raw_place(int k, int octet) {
    constexpr int kOctets = Tile::kColumns / 8;
    static_assert(kOctets % 8 == 0 || kOctets % 8 == 4 || kOctets == 2);
    return k * Tile::kColumns * 2 + (octet ^ (kOctets % 8 == 0 ? k & 7 : kOctets == 2 ? k >> 2 & 1 : k >> 1 & 3)) * 16;
  }

  /// A thread's four channels and four k of a float weight [k][channel], in the places of four channels.
  FUSEDSC_DEVICE static int square_channel() { return thread_index() % kSquareThreads % (Tile::kColumns / 4) * 4; }
  FUSEDSC_DEVICE static int square_run() { return thread_index() % kSquareThreads / (Tile::kColumns / 4); }
  FUSEDSC_DEVICE static FragmentWords* square_place(unsigned char* stage, int r) {
    return reinterpret_cast<FragmentWords*>(stage +
                                            chunk_row_place(row_of_channel(square_channel() + r), square_run()));
  }

  std::int64_t stride_;
  unsigned char* memory_;
  int stage_bytes_;
  const T* from_;  ///< the thread's, of the first stage
  int first_k_ = 0, left_ = 0;
};

}  // namespace fusedsc::gpu
