/// Rows of a tensor whose channels are no multiple of 8, between memory and a warp's place in shared memory. Where
/// nothing lies between rows, those of a tile are one run of bytes, copied as it lies, 16 bytes a lane: 8 positions
/// always are a multiple of 16. Other rows are copied in the largest pieces that all of them are aligned to.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/gpu/tensors/least.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_cursor.h"

namespace fusedsc::gpu {

/// Bytes from a row to the next in shared memory, at most. An odd number of 16 bytes, so that a column of words falls
/// on different banks.
FUSEDSC_HOST_DEVICE constexpr int packed_pitch_bound(int channels) { return ((channels * 2 + 15) / 16 | 1) * 16; }

/// Where the rows are, and how the lanes of a warp, or of several, share them out. Kept in shared memory: it is needed
/// once a tile.
struct PackedRows {
  unsigned char* base = nullptr;
  std::int64_t pitch = 0;  ///< in memory, bytes
  int row_bytes = 0, shared_pitch = 0;
  int place = 0;                       ///< in a warp's slot, bytes
  int piece = 16, pieces = 1;          ///< bytes; of a row, or of the run
  int step_rows = 0, step_pieces = 0;  ///< as many pieces further as there are lanes
  float of_pieces = 1;                 ///< 1 / pieces
  bool is_run = false;

  PackedRows() = default;

  /// Of `channels` channels from `first_channel` on, in tiles of `rows` positions.
  template <class T, class Void>
  FUSEDSC_DEVICE PackedRows(const BasicPointwiseMatrix<Void>& matrix, int group, int first_channel, int channels,
                            int rows, int place_, T, int lanes = 32)
      : pitch(matrix.first * 2), row_bytes(channels * 2), place(place_) {
    const auto* const from = static_cast<const T*>(matrix.data) + group * matrix.group + first_channel;
    base = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(from));
    is_run = pitch == row_bytes && channels % 8 != 0;
    const std::uintptr_t aligned =
        reinterpret_cast<std::uintptr_t>(from) | (is_run ? 0 : static_cast<std::uintptr_t>(pitch));
    piece = aligned % 16 == 0 ? 16 : aligned % 8 == 0 ? 8 : 4;
    const int together = is_run ? rows * row_bytes : row_bytes;
    pieces = (together + piece - 1) / piece;
    shared_pitch = is_run        ? row_bytes
                   : piece == 16 ? packed_pitch_bound(channels)
                                 : (row_bytes + piece - 1) / piece * piece;
    step_rows = lanes / pieces;
    step_pieces = lanes % pieces;
    of_pieces = 1.f / static_cast<float>(pieces);
  }

  /// use(offset in memory, offset in shared memory, bytes that exist) of a lane's pieces: of `rows` rows of a tile.
  template <int kPiece, class Use>
  FUSEDSC_DEVICE void for_each_piece(int lane, int rows, const Use& use) const {
    const int row_end = is_run ? (rows > 0 ? 1 : 0) : rows, bytes = is_run ? rows * row_bytes : row_bytes;
    int row = static_cast<int>((static_cast<float>(lane) + 0.5f) * of_pieces);  // lane / pieces: exact for few lanes
    int at = lane - row * pieces;
#pragma unroll 2
    while (row < row_end) {
      const int left = bytes - at * kPiece;
      if (left > 0) use(row * pitch + at * kPiece, row * shared_pitch + at * kPiece, least(left, kPiece));
      at += step_pieces;
      row += step_rows;
      if (at >= pieces) {
        at -= pieces;
        ++row;
      }
    }
  }

  template <class Use>
  FUSEDSC_DEVICE void with_piece(const Use& use) const {
    if (piece == 16) use(std::integral_constant<int, 16>());
    else if (piece == 8) use(std::integral_constant<int, 8>());
    else use(std::integral_constant<int, 4>());
  }

  /// Starts copying `rows` rows from position `first` on to a slot.
  FUSEDSC_DEVICE void start(int lane, std::int64_t first, int rows, unsigned char* slot) const {
    const unsigned char* const from = base + first * pitch;
    unsigned char* const to = slot + place;
    with_piece([&](auto constant) {
      constexpr int kPiece = decltype(constant)::value;
      for_each_piece<kPiece>(lane, rows, [&](std::int64_t offset, int shared_offset, int bytes) {
        start_copy_of<kPiece>(to + shared_offset, from + offset, bytes);
      });
    });
  }

  /// Stores them.
  FUSEDSC_DEVICE void leave(int lane, std::int64_t first, int rows, const unsigned char* slot) const {
    unsigned char* const to = base + first * pitch;
    const unsigned char* const from = slot + place;
    with_piece([&](auto constant) {
      constexpr int kPiece = decltype(constant)::value;
      using Words = Aligned<std::uint32_t, kPiece / 4>;
      for_each_piece<kPiece>(lane, rows, [&](std::int64_t offset, int shared_offset, int bytes) {
        const Words words = *reinterpret_cast<const Words*>(from + shared_offset);
        if (bytes == kPiece) {
          *reinterpret_cast<Words*>(to + offset) = words;
        } else {
#pragma unroll
          for (int w = 0; w < kPiece / 4; ++w) {
            if (4 * w < bytes) *reinterpret_cast<std::uint32_t*>(to + offset + 4 * w) = words.elements[w];
          }
        }
      });
    });
  }
};

}  // namespace fusedsc::gpu
