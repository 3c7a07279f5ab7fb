/// What PointwiseGradients (pointwise_hopper_k_resident_kernel.h) does otherwise for windows that share half of their
/// channels with the next one: channels fall into kWindows blocks of `step`, and each of them belongs to the first half
/// of one window and to the second half of the one before. Which window a filter has, and which sums of a thread are in
/// one, is then known but for a few comparisons, and only these sums leave a block: for each channel two times its
/// windows' filters.
#pragma once

#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_block.h"

namespace fusedsc::gpu::hopper {

template <class Block>
class PointwiseGradientsWindows : public Block {
 protected:
  using T = typename Block::Element;
  using Block::channel_tile_, Block::first_column_, Block::group_, Block::p_, Block::split_;
  using Block::kChannels, Block::kDepth, Block::kProductThreads, Block::kSharing, Block::kSlices, Block::kWindowFilters,
      Block::kWindowPitch, Block::kWindows, Block::kWindowSumFloats;
  using Block::lane, Block::left, Block::warp;

  using Block::Block;

  // ---------------------------------------------------------------------------------------------------- the weight

  /// Like PointwiseGradientsWeight::lay_out().
  FUSEDSC_DEVICE void lay_out_windows(unsigned char* to) const {
    switch (p_.weight.piece) {
      case 8: return lay_out_pieces<8>(to);
      case 4: return lay_out_pieces<4>(to);
      default: return lay_out_pieces<2>(to);
    }
  }

  /// kPiece: neighbours that lie within a window or outside of it. A thread has the same channels of filters that all
  /// have the same window.
  template <int kPiece>
  FUSEDSC_DEVICE void lay_out_pieces(unsigned char* to) const {
    constexpr int kRuns = kChannels / 8, kAdvance = kProductThreads / kRuns, kItems = kDepth / kAdvance;
    constexpr int kPieces = 8 / kPiece, kWords = kPiece / 2;
    static_assert(kDepth % kAdvance == 0 && kAdvance % kWindows == 0);
    const int run = thread_index() % kRuns, row = thread_index() / kRuns;
    const Column own = column_of(run * 8);
    const int output = row - own.position * p_.outputs, first = row % kWindows * p_.weight.step;
    const T* const data = static_cast<const T*>(p_.weight.data);
    int places[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) places[i] = p_.weight.place(first, own.channel + i * kPiece);
    Aligned<std::uint32_t, 4> runs[kItems];
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int filter = output + item * kAdvance;
      const bool exists = filter >= 0 && filter < p_.outputs && own.channel < p_.channels;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const bool has = exists && places[i] < p_.weight.width;
        // Without branches, so that all loads are under way at once: something is always loaded.
        const auto piece = *reinterpret_cast<const Aligned<std::uint32_t, kWords>*>(
            data + (has ? filter * p_.weight.row + places[i] : 0));
#pragma unroll
        for (int j = 0; j < kWords; ++j) runs[item].elements[i * kWords + j] = has ? piece.elements[j] : 0;
      }
    }
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(to + place_of_run<128>(row + item * kAdvance, run)) = runs[item];
    }
  }

  // ------------------------------------------------------------------------------------------------------ its gradient

  /// A thread's sums that are in a window, to shared memory: [half of the window][filter of the window][column].
  FUSEDSC_DEVICE void leave_windows(const float (&sums)[kDepth / 2]) const {
    constexpr int kParities = kWindows == 16 ? 2 : 1;  // of eights of outputs, which then are of different windows
    const int filters = p_.outputs / kWindows;
    float* const own = left() + group_ * kWindowSumFloats;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = warp() * 16 + half * 8 + lane() / 4;
      const Column column = column_of(place);
      const int block = column.channel / p_.weight.step, before = block == 0 ? kWindows - 1 : block - 1;
      const int first_filter = (kWindows == 4 ? lane() % 4 / 2 : 0) - column.position * filters;
#pragma unroll
      for (int other = 0; other < 2 * kParities; ++other) {
        const int parity = other / 2, next = other % 2, window = (parity * 8 + lane() % 4 * 2 + next) % kWindows;
        if (column.channel >= p_.channels || (window != block && window != before)) continue;
        float* const to = own + ((window == block ? 0 : kWindowFilters) + first_filter) * kWindowPitch + place;
#pragma unroll
        for (int eight = parity; eight < kDepth / 8; eight += kParities) {
          const int filter = eight * 8 / kWindows;
          if (static_cast<unsigned>(filter + first_filter) >= static_cast<unsigned>(filters)) continue;
          to[filter * kWindowPitch] = sums[eight * 4 + half * 2 + next];
        }
      }
    }
  }

  /// What the groups have left, added up, of all positions of a row.
  FUSEDSC_DEVICE void store_windows() const {
    using Four = Aligned<float, 4>;
    const int columns = p_.fold == 1 ? kChannels : p_.channels, quads = columns / 4, advance = kProductThreads / quads;
    const int first_row = thread_index() / quads, column = (thread_index() - first_row * quads) * 4;
    const int filters = p_.outputs / kWindows, rows = 2 * filters;
    if (first_column_ + column >= p_.channels) return;
    const std::int64_t part = std::int64_t{channel_tile_} * p_.splits + split_;
    float* const to = p_.partials + part * rows * columns + column;
#pragma unroll 2
    for (int row = first_row; row < rows; row += advance) {
      const float* from = left() + (row < filters ? row : row - filters + kWindowFilters) * kWindowPitch + column;
      Four sum = {};
#pragma unroll 1
      for (int position = 0; position < p_.fold; ++position) {
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) {
          const Four of_slice = *reinterpret_cast<const Four*>(from + position * columns + slice * kWindowSumFloats);
#pragma unroll
          for (int i = 0; i < 4; ++i) sum.elements[i] += of_slice.elements[i];
        }
      }
      *reinterpret_cast<Four*>(to + row * columns) = sum;
    }
  }

 private:
  /// Of a block: the position in its row, and the channel of x.
  struct Column {
    int position, channel;
  };
  FUSEDSC_DEVICE Column column_of(int column) const {
    if (p_.fold == 1) return {0, first_column_ + column};
    const int position = column / p_.channels;
    return {position, column - position * p_.channels};
  }
};

}  // namespace fusedsc::gpu::hopper
