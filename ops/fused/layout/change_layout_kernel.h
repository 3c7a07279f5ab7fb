/// Copies in the other layout: tiles of channels and positions go through registers, where pieces of rows of positions
/// become runs of channels or the other way round, and through shared memory, since threads that are neighbours in one
/// layout are not in the other.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/least.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu {

inline constexpr int kLayoutChunkBytes = 16;  ///< neighbouring channels of a position; tiles are made of these
inline constexpr int kMostLayoutChunks = 12;  ///< of a position of a tile
inline constexpr int kLayoutLanes = 32;       ///< threads per chunk of a position, side by side along the positions

/// Positions of a tile at most, where a thread moves `piece` of them at once.
FUSEDSC_HOST_DEVICE constexpr int most_layout_positions(int piece) { return piece == 1 ? 64 : 128; }
/// How many chunks of shared memory a piece's positions have. With an odd number, threads that have neighbouring pieces
/// are on different banks.
FUSEDSC_HOST_DEVICE constexpr int layout_pitch(int chunks, int piece) { return chunks * piece | 1; }

struct ChangeLayoutParameters {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t from_image = 0, to_image = 0;  ///< elements from image to image
  int channels = 0, positions = 0;            ///< of an image
  int tile_chunks = 0, tile_positions = 0;    ///< the last tile of an image may have fewer
  Divisor by_runs;                            ///< that a position of a tile has
  Divisor by_channel_tiles, by_position_tiles;
};

/// T: an unsigned type as wide as the elements. kRun: how many channels of one position a thread moves at once, a chunk
/// of them or 1; kPiece: how many positions of one channel. Both must be neighbours in memory, aligned together.
template <class T, int kRun, int kPiece>
class LayoutTile {
 public:
  FUSEDSC_DEVICE explicit LayoutTile(const ChangeLayoutParameters& p)
      : p_(p), memory_(static_cast<T*>(shared_memory())), pitch_(layout_pitch(p.tile_chunks, kPiece) * kChunk) {
    std::uint32_t channel_tile = block_index(), position_tile = p.by_channel_tiles.divide(channel_tile);
    image_ = static_cast<std::int64_t>(p.by_position_tiles.divide(position_tile));
    channel_ = static_cast<int>(channel_tile) * p.tile_chunks * kChunk;
    position_ = static_cast<int>(position_tile) * p.tile_positions;
    positions_ = least(p.tile_positions, p.positions - position_);
  }

  FUSEDSC_DEVICE void to_channels_last() const {
    const Pieces own(*this);
    const T* from = static_cast<const T*>(p_.from) + image_ * p_.from_image + own.in_image;
    Piece pieces[kSteps][kChunk];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * kStep >= own.positions) break;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        // Where the last chunk is not whole, the last channel stands for those that are missing: nobody reads them.
        const int channel = kRun == 1 ? least(j, own.channels - 1) : j;
        pieces[step][j] = *reinterpret_cast<const Piece*>(from + std::int64_t{channel} * p_.positions + step * kStep);
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * kStep >= own.positions) break;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        Chunk chunk;
#pragma unroll
        for (int j = 0; j < kChunk; j += kOfWord) {
          const Piece &first = pieces[step][j], &last = pieces[step][j + kOfWord - 1];
          chunk.elements[j / kOfWord] = of_both(first.elements[i / kOfWord], last.elements[i / kOfWord], i);
        }
        *own.chunk_at(step, i) = chunk;
      }
    }
    block_barrier();
    const Runs runs(*this);
    T* to = static_cast<T*>(p_.to) + image_ * p_.to_image + runs.in_image;
    runs.copy(runs.memory, runs.memory_step, to, runs.image_step);
  }

  FUSEDSC_DEVICE void to_contiguous() const {
    const Runs runs(*this);
    const T* from = static_cast<const T*>(p_.from) + image_ * p_.from_image + runs.in_image;
    runs.copy(from, runs.image_step, runs.memory, runs.memory_step);
    block_barrier();
    const Pieces own(*this);
    T* to = static_cast<T*>(p_.to) + image_ * p_.to_image + own.in_image;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * kStep >= own.positions) break;
      Chunk chunks[kPiece];
#pragma unroll
      for (int i = 0; i < kPiece; ++i) chunks[i] = *own.chunk_at(step, i);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (kRun == 1 && j >= own.channels) continue;
        Piece piece;
#pragma unroll
        for (int i = 0; i < kPiece; i += kOfWord) {
          const Chunk &first = chunks[i], &last = chunks[least(i + kOfWord, kPiece) - 1];
          piece.elements[i / kOfWord] =
              static_cast<PieceWord>(of_both(first.elements[j / kOfWord], last.elements[j / kOfWord], j));
        }
        *reinterpret_cast<Piece*>(to + std::int64_t{j} * p_.positions + step * kStep) = piece;
      }
    }
  }

 private:
  static constexpr int kChunk = kLayoutChunkBytes / static_cast<int>(sizeof(T));
  static constexpr int kStep = kLayoutLanes * kPiece, kSteps = most_layout_positions(kPiece) / kStep;
  // Elements of 16 bits are kept in twos (vector.h says why) where there are two.
  using Word = std::conditional_t<sizeof(T) == 2, std::uint32_t, T>;
  using PieceWord = std::conditional_t<kPiece == 1, T, Word>;
  static constexpr int kOfWord = static_cast<int>(sizeof(Word) / sizeof(T));
  using Chunk = Aligned<Word, kChunk / kOfWord>;
  static constexpr int kRunWords = kRun == 1 ? 1 : kChunk / kOfWord;
  using Run = Aligned<std::conditional_t<kRun == 1, T, Word>, kRunWords>;
  using Piece = Aligned<PieceWord, kPiece == 1 ? 1 : kPiece / kOfWord>;

  /// A thread's part along the positions: at every step a piece of each of a chunk's channels.
  struct Pieces {
    std::int64_t in_image;  ///< of the first
    T* memory;
    int positions, channels;  ///< that there are from the first on
    int pitch, tile_chunks;

    FUSEDSC_DEVICE explicit Pieces(const LayoutTile& tile) : pitch(tile.pitch_), tile_chunks(tile.p_.tile_chunks) {
      const int lane = thread_index() % kLayoutLanes, first = thread_index() / kLayoutLanes * kChunk,
                channel = tile.channel_ + first;
      channels = tile.p_.channels - channel;
      positions = channels > 0 ? tile.positions_ - lane * kPiece : 0;
      in_image = std::int64_t{channel} * tile.p_.positions + tile.position_ + lane * kPiece;
      memory = tile.memory_ + lane * pitch + first;
    }
    /// Of the i-th position of the piece.
    FUSEDSC_DEVICE Chunk* chunk_at(int step, int i) const {
      return reinterpret_cast<Chunk*>(memory + step * kLayoutLanes * pitch + i * tile_chunks * kChunk);
    }
  };

  /// A thread's part along the channels: one run of every kRunStep-th position.
  struct Runs {
    static constexpr int kRunStep = kLayoutLanes * kRun / kChunk;
    static constexpr int kCount = most_layout_positions(kPiece) / kRunStep, kBatch = kCount < 8 ? kCount : 8;
    static_assert(kRunStep % kPiece == 0 && kCount % kBatch == 0);

    std::int64_t in_image, image_step;
    T* memory;
    int memory_step;
    int positions;  ///< that there are from the first on

    FUSEDSC_DEVICE explicit Runs(const LayoutTile& tile) {
      auto run = static_cast<std::uint32_t>(thread_index());
      const std::uint32_t number = tile.p_.by_runs.divide(run);
      const int position = static_cast<int>(number), piece = static_cast<int>(number / kPiece),
                of_piece = static_cast<int>(number % kPiece), first = static_cast<int>(run) * kRun,
                channel = tile.channel_ + first;
      positions = channel < tile.p_.channels ? tile.positions_ - position : 0;
      in_image = std::int64_t{tile.position_ + position} * tile.p_.channels + channel;
      image_step = std::int64_t{kRunStep} * tile.p_.channels;
      memory = tile.memory_ + piece * tile.pitch_ + of_piece * tile.p_.tile_chunks * kChunk + first;
      memory_step = kRunStep / kPiece * tile.pitch_;
    }

    FUSEDSC_DEVICE void copy(const T* from, std::int64_t from_step, T* to, std::int64_t to_step) const {
#pragma unroll 1
      for (int first = 0; first < kCount; first += kBatch) {
        Run runs[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i, from += from_step) {
          if ((first + i) * kRunStep >= positions) continue;
          const Run run = *reinterpret_cast<const Run*>(from);
#pragma unroll
          for (int word = 0; word < kRunWords; ++word)
            runs[i].elements[word] = run.elements[word];  // stays in registers
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i, to += to_step) {
          if ((first + i) * kRunStep < positions) *reinterpret_cast<Run*>(to) = runs[i];
        }
      }
    }
  };

  /// The word of element `number` of what is in `first` and `last`.
  FUSEDSC_DEVICE static Word of_both(Word first, Word last, int number) {
    using Elements = Aligned<T, kOfWord>;
    Elements both;
    both.elements[0] = __builtin_bit_cast(Elements, first).elements[number % kOfWord];
    both.elements[kOfWord - 1] = __builtin_bit_cast(Elements, last).elements[number % kOfWord];
    return __builtin_bit_cast(Word, both);
  }

  const ChangeLayoutParameters& p_;
  T* memory_;  ///< pieces of positions, `pitch_` apart, of tile_chunks chunks each
  int pitch_;  ///< elements
  std::int64_t image_;
  int channel_, position_;  ///< the first of the tile
  int positions_;           ///< that it has
};

}  // namespace fusedsc::gpu
