/// Sliding-channel convolution of 32 channels, 16-bit and channels_last, on Hopper GPUs, for windows that share half of
/// their channels with the next one: two neighbouring positions lie in a row of 64, so that copies have whole rows of
/// 128 bytes, and a tile twice as much. A product takes the windows that begin in the same eight channels of a
/// position, which lie in these and the next eight: threads lay its weight out, with zeros around each window.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/forward/sliding_channel/windows/sliding_channel_windows_parameters.h"

namespace fusedsc::gpu::hopper {

/// A block has 64 outputs of both positions.
template <class T, int kWindows_>
class SlidingWindowsFolded : SlidingWindowsBlock {
 public:
  static constexpr int kWindows = kWindows_, kFilters = 64 / kWindows;
  static constexpr int kPositions = 2, kColumns = 32;  ///< channels of a position

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int /*step*/, int groups, int stages) {
    return bytes_of(sizes(), groups, stages);
  }

  FUSEDSC_DEVICE static void run(const SlidingWindowsParameters& p) {
    SlidingWindowsFolded product(p);
    product.loop();
  }

 private:
  static constexpr int kStep = kColumns / kWindows, kEights = kColumns / 8, kProducts = kPositions * kEights;
  static constexpr int kNeighbours = 8 / kStep;  ///< windows that begin in the same eight channels
  static constexpr int kOutputs = 16;            ///< of a product: its windows' filters
  static constexpr int kRowBytes = 64, kProductBytes = kOutputs * kRowBytes;
  FUSEDSC_HOST_DEVICE static constexpr Sizes sizes() {
    return {kEights * kProductBytes, 0, kTileBytes, kPositions * kTileBytes};
  }
  static_assert(kNeighbours * kFilters == kOutputs);
  using Sums = float[kProducts][kOutputs / 2];

  FUSEDSC_DEVICE explicit SlidingWindowsFolded(const SlidingWindowsParameters& p)
      : SlidingWindowsBlock(p, sizes(), static_cast<int>(block_index()), 64), p_(p) {}

  FUSEDSC_DEVICE void loop() {
    begin(
        p_.x, p_.x, [&](int slot) { start_next(slot); }, [](int) {});
    lay_out_weight();
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Sums sums;  // set by products
      wait(barriers_ + turn.slot, turn.parity);
      multiply_tile(sums, stages_ + turn.slot * kTileBytes);
      wait_for_products<0>();
      fence(sums);
      leave_tile(
          p_.y, kPositions * 64, tile,
          [&] {
            if (is_leader_) start_next(turn.slot);
            store_tile(sums);
          },
          p_.outputs);
      turn.next(p_.stages);
    }
    if (is_leader_) wait_for_stores();
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kTileBytes);
    start_load(stages_ + slot * kTileBytes, p_.x, 0, first_pixel(next_tile_), barriers_ + slot);
    count_step();
  }

  FUSEDSC_DEVICE void multiply_tile(Sums& sums, const unsigned char* x) const {
    const int lane = thread_index() % 32, row = thread_index() % 128 / 32 * 16 + lane % 16;
    std::uint32_t factors[kProducts][4];
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const int run = i / kEights * kEights + (i + lane / 16) % kEights;
      load_matrices(x + place_of_run<128>(row, run), factors[i]);
    }
    fence(sums);
    begin_products();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      multiply<false>(sums[i], factors[i], describe<kRowBytes>(weight_ + i % kEights * kProductBytes), true, T());
    }
    commit_products();
    fence(sums);
  }

  /// Which filter and which of its windows a product's column is: such that a thread, which has two neighbouring ones
  /// of each eight, has neighbouring outputs of all products.
  struct Column {
    int filter, neighbour;
  };
  FUSEDSC_DEVICE static Column column_of(int column) {
    const int eight = column / 8, pair = column % 8 / 2, next = column % 2;
    if constexpr (kNeighbours == 4) return {pair, eight * 2 + next};
    if constexpr (kNeighbours == 2) return {eight * 4 + pair, next};
    return {column, 0};
  }

  /// By all: of each product's columns 16 channels, of which a window has `width`.
  FUSEDSC_DEVICE void lay_out_weight() const {
    constexpr int kWords = kStep, kAtOnce = kWords < 4 ? kWords : 4;  // of a window
    using Piece = Aligned<std::uint32_t, kAtOnce>;
    const int product = thread_index() / kOutputs, own = thread_index() % kOutputs;
    if (product < kEights) {
      const Column column = column_of(own);
      const int output = first_channel_ + column.filter * kWindows + product * kNeighbours + column.neighbour;
      const auto* from = reinterpret_cast<const Piece*>(static_cast<const T*>(p_.weight_data) + output * p_.weight_row);
      std::uint32_t words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = from[i / kAtOnce].elements[i % kAtOnce];
      Aligned<std::uint32_t, 4> runs[2] = {};
#pragma unroll
      for (int neighbour = 0; neighbour < kNeighbours; ++neighbour) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          const int word = neighbour * kStep / 2 + i;
          if (neighbour == column.neighbour) runs[word / 4].elements[word % 4] = words[i];
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<Aligned<std::uint32_t, 4>*>(weight_ + product * kProductBytes +
                                                      place_of_run<kRowBytes>(own, i)) = runs[i];
      }
    }
    publish();
    block_barrier();
  }

  /// Outputs 2 * pair and on of a thread's run of eight.
  FUSEDSC_DEVICE static std::uint32_t pair_of(const Sums& sums, int position, int half, int run, int pair) {
    const int first = position * kEights, place = half * 2;
    if constexpr (kNeighbours == 4) {
      const float* own = sums[first + run * 2 + pair / 2] + pair % 2 * 4 + place;
      return to_bits(own[0], own[1], T());
    }
    if constexpr (kNeighbours == 2) {
      const float* own = sums[first + pair] + run * 4 + place;
      return to_bits(own[0], own[1], T());
    }
    const int from = run * 4 + place + pair / 2;
    return to_bits(sums[first + pair % 2 * 2][from], sums[first + pair % 2 * 2 + 1][from], T());
  }

  /// To shared memory, in runs of 16 bytes: a tile for each position.
  FUSEDSC_DEVICE void store_tile(const Sums& sums) const {
    const int lane = thread_index() % 32, warp_row = thread_index() % 128 / 32 * 16;
#pragma unroll
    for (int position = 0; position < kPositions; ++position) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + lane / 4 + half * 8;
#pragma unroll
        for (int run = 0; run < 2; ++run) {
          Aligned<std::uint32_t, 4> words;
#pragma unroll
          for (int i = 0; i < 4; ++i) words.elements[i] = pair_of(sums, position, half, run, i);
          const int number = kNeighbours == 4 ? lane % 4 * 2 + run : run * 4 + lane % 4;
          *reinterpret_cast<Aligned<std::uint32_t, 4>*>(out_ + position * kTileBytes + place_of_run<128>(row, number)) =
              words;
        }
      }
    }
  }

  const SlidingWindowsParameters& p_;
};

}  // namespace fusedsc::gpu::hopper
