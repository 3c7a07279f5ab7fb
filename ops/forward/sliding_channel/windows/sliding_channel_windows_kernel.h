/// Sliding-channel convolution of 16-bit channels_last tensors on Hopper GPUs, window by window: for windows that share
/// half of their channels with the next one. Filters of one window lie `kWindows` apart, so a product takes these from
/// the weight as it is, with no zeros between them, and what a thread has of all windows for one filter each are
/// neighbouring channels of y.
///
/// A block keeps the weight of its filters in shared memory; positions come by TMA, 64 at a time to each
/// warpgroup, 64 channels at a time. Where the step is 8 channels, half of what a product takes, or 4, all
/// channels come at a time, and threads read a window's channels from shared memory, wherever it begins.
///
/// Of many channels and few positions a block may have half of the windows only, which want half of the channels and
/// one step more: more blocks, each with fewer steps one after the other. Threads then store their outputs by
/// themselves.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/forward/sliding_channel/windows/sliding_channel_windows_parameters.h"

namespace fusedsc::gpu::hopper {

/// kFilters: of each window, in a block. kPart: channels that have the same two windows, and come at a time: the step
/// from one window to the next, 64 at most. kOwn: neighbouring windows that a block has, all of them or half.
template <class T, int kWindows_, int kFilters_, int kPart_, int kOwn_ = kWindows_>
class SlidingWindowsProduct : SlidingWindowsBlock {
 public:
  static constexpr int kWindows = kWindows_, kFilters = kFilters_, kPart = kPart_;
  static constexpr int kOwn = kOwn_;
  static constexpr int kChannels = kOwn * kFilters;  ///< of y, of a block
  /// Channels of a copy of the weight, of all filters of a window: of 16 and fewer those behind them come, too.
  static constexpr int kBox = kPart == 64 ? 64 : 32;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int step, int groups, int stages) {
    return bytes_of(sizes(step), groups, stages);
  }

  FUSEDSC_DEVICE static void run(const SlidingWindowsParameters& p) {
    SlidingWindowsProduct product(p);
    product.loop();
  }

 private:
  static constexpr int kDepth = 64;           ///< channels of a tile of x
  static constexpr bool kWhole = kPart <= 8;  ///< windows are multiplied whole
  /// Windows that begin in the same eight channels: a product makes all of them, whose weight threads lay out then.
  static constexpr int kNeighbours = kWhole ? 8 / kPart : 1, kProducts = kWindows / kNeighbours;
  static constexpr bool kLaysOut = kNeighbours > 1;
  static constexpr bool kHasAll = kOwn == kWindows;
  /// Channels that have the same two windows: so many blocks of them are multiplied.
  static constexpr int kSteps = kHasAll ? kWindows : kOwn + 1;
  static constexpr int kTiles = kWhole ? kProducts * 8 / kDepth : 1, kStageBytes = kTiles * kTileBytes;
  static constexpr int kBlocks = kWhole ? kWindows : kDepth / kPart;  ///< that come at a time, of the same windows each
  static constexpr int kRowBytes = kBox * 2, kBoxBytes = kFilters * kRowBytes;
  /// The weight of a part of the channels: of the window of which they are the second half, of that which they begin;
  /// or of a product's windows.
  static constexpr int kPartBytes = (kWhole ? kNeighbours : 2) * kBoxBytes;
  static_assert(kChannels % 64 == 0 && kWindows % 4 == 0 && kNeighbours <= 2 && (!kWhole || kProducts % 8 == 0));
  static_assert(kWhole || kPart == 16 || kPart == 32 || kPart == 64);
  static_assert(kHasAll || (!kWhole && kOwn % 4 == 0));
  /// Of each block of channels with the same windows: of that of which they are the second half, of that which they
  /// begin; or of a product's windows.
  using Sums = float[kWhole ? kProducts : kSteps][kWhole ? kFilters * kNeighbours / 2 : kFilters];

  FUSEDSC_HOST_DEVICE static constexpr Sizes sizes(int step) {
    const int parts = (kWhole ? kProducts : kSteps) * (step / kPart);  // of all channels
    return {parts * kPartBytes, kLaysOut ? 0 : parts, kStageBytes, kHasAll ? kRows * kChannels * 2 : 0};
  }

  FUSEDSC_DEVICE explicit SlidingWindowsProduct(const SlidingWindowsParameters& p)
      : SlidingWindowsBlock(p, sizes(p.step), static_cast<int>(block_index()), kChannels), p_(p) {
    constexpr int kParts = kWindows / kOwn;
    const int tile = first_channel_ / kChannels;
    first_window_ = tile % kParts * kOwn;
    first_filter_ = tile / kParts * kFilters;
  }

  FUSEDSC_DEVICE void loop() {
    begin(
        p_.x, p_.weight, [&](int slot) { start_next(slot); }, [&](int part) { start_weight(part); });
    if constexpr (kLaysOut) lay_out_weight();
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Sums sums;  // set by the first product with each
      int last_slot = -1;
#pragma unroll
      for (int first = 0; first < kSteps; first += kBlocks) {
#pragma unroll 1
        for (int part = 0; part < p_.step; part += kPart) {
          if (tile == 0) wait_for_weight(first, part);
          wait(barriers_ + turn.slot, turn.parity);
          multiply_stage(sums, first, part, turn.slot);
          if (last_slot >= 0) {
            wait_for_products<1>();
            group_barrier(group_);
            if (is_leader_) start_next(last_slot);
          }
          last_slot = turn.slot;
          turn.next(p_.stages);
        }
      }
      wait_for_products<0>();
      fence(sums);
      if constexpr (kHasAll) {
        leave_tile(p_.y, kChannels, tile, [&] {
          if (is_leader_) start_next(last_slot);
          store_tile(sums);
        });
      } else {
        group_barrier(group_);  // all are done with the last stage
        if (is_leader_) start_next(last_slot);
        store_outputs(sums, first_pixel(tile));
      }
    }
    if (kHasAll && is_leader_) wait_for_stores();
  }

  // -------------------------------------------------------------------------------------------------- by one thread

  FUSEDSC_DEVICE void start_weight(int part) const {
    const int parts_of_window = p_.step / kPart;
    const int window = (first_window_ + part / parts_of_window) % kWindows, from = part % parts_of_window * kPart;
    unsigned char* to = weight_ + part * kPartBytes;
    expect(weight_barriers_ + part, kPartBytes);
    if (!kWhole) start_box(to, (window + kWindows - 1) % kWindows, p_.step + from, weight_barriers_ + part);
    start_box(to + kPartBytes - kBoxBytes, window, from, weight_barriers_ + part);
  }
  FUSEDSC_DEVICE void start_box(unsigned char* to, int window, int channel, Barrier* barrier) const {
    start_load(to, p_.weight, ImagePlace{channel, first_filter_, window, 0}, barrier);
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kStageBytes);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      int channel = (next_step_ * kTiles + i) * kDepth;
      if constexpr (!kHasAll) {
        channel += first_window_ * p_.step;
        if (channel >= kWindows * p_.step) channel -= kWindows * p_.step;
      }
      start_load(stages_ + slot * kStageBytes + i * kTileBytes, p_.x, channel, first_pixel(next_tile_),
                 barriers_ + slot);
    }
    count_step();
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  /// Of the channels from `from` on of those with which a window begins.
  FUSEDSC_DEVICE int part_of(int window, int from) const { return window * (p_.step / kPart) + from / kPart; }

  FUSEDSC_DEVICE void wait_for_weight(int first, int from) const {
#pragma unroll
    for (int block = 0; block < (kLaysOut ? 0 : kBlocks); ++block) {
      if (kWhole || first + block < kSteps) wait(weight_barriers_ + part_of(first + block, from), 0);
    }
  }

  /// Each channel belongs to the second half of a window and to the first half of the next one: a product makes both,
  /// which takes no longer than one of them. `first`: the window that begins where the tile of x does, or `part`
  /// channels before it.
  FUSEDSC_DEVICE void multiply_stage(Sums& sums, int first, int part, int slot) const {
    if constexpr (kWhole) return multiply_whole(sums, stages_ + slot * kStageBytes);
    const std::uint64_t rows = describe<128>(stages_ + slot * kStageBytes);
    fence(sums);
    begin_products();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (first + block >= kSteps) break;
      const std::uint64_t pair = describe<kRowBytes>(weight_ + part_of(first + block, part) * kPartBytes);
#pragma unroll
      for (int k = 0; k < kPart; k += 16) {
        multiply<false>(sums[first + block], rows + (block * kPart + k) * 2 / 16, pair + k * 2 / 16,
                        part == 0 && k == 0, T());
      }
    }
    commit_products();
    fence(sums);
  }

  /// All windows, each with the eight channels in which it begins, and the next ones.
  FUSEDSC_DEVICE void multiply_whole(Sums& sums, const unsigned char* x) const {
    const int lane = thread_index() % 32, row = thread_index() % 128 / 32 * 16 + lane % 16;
    std::uint32_t factors[kProducts][4];
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const int run = (i + lane / 16) % kProducts;
      load_matrices(x + run / 8 * kTileBytes + place_of_run<128>(row, run % 8), factors[i]);
    }
    fence(sums);
    begin_products();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      multiply<false>(sums[i], factors[i], describe<kRowBytes>(weight_ + i * kPartBytes), true, T());
    }
    commit_products();
    fence(sums);
  }

  /// By all: of each product's columns, which are two windows' filters in turns, 16 channels, of which a window has 8.
  FUSEDSC_DEVICE void lay_out_weight() const {
    using Run = Aligned<std::uint32_t, 4>;
    constexpr int kColumns = kFilters * kNeighbours;
    for (int i = thread_index(); i < kChannels; i += p_.groups * 128) {
      const int column = i % kColumns, product = i / kColumns;
      const int output = first_channel_ + column / 2 * kWindows + product * 2 + column % 2;
      Run window = {};
      if (output < p_.outputs) {
        window = *reinterpret_cast<const Run*>(static_cast<const T*>(p_.weight_data) + output * p_.weight_row);
      }
      const auto& words = window.elements;
      const bool is_second = column % 2 != 0;
      unsigned char* to = weight_ + product * kPartBytes;
      *reinterpret_cast<Run*>(to + place_of_run<kRowBytes>(column, 0)) =
          is_second ? Run{{0, 0, words[0], words[1]}} : window;
      *reinterpret_cast<Run*>(to + place_of_run<kRowBytes>(column, 1)) =
          is_second ? Run{{words[2], words[3], 0, 0}} : Run{};
    }
    publish();
    block_barrier();
  }

  /// A window's sum of both of its halves.
  FUSEDSC_DEVICE static float sum_of(const Sums& sums, int window, int place) {
    if constexpr (kWhole) return sums[window][place];
    return sums[window][kFilters / 2 + place] + sums[(window + 1) % kSteps][place];
  }

  /// Two neighbouring outputs: numbers `channel` and on of those that the thread has from `place` on.
  FUSEDSC_DEVICE static std::uint32_t pair_of(const Sums& sums, int channel, int place) {
    if constexpr (kLaysOut) return to_bits(sums[channel / 2][place], sums[channel / 2][place + 1], T());
    place += channel / kWindows;
    return to_bits(sum_of(sums, channel % kWindows, place), sum_of(sums, channel % kWindows + 1, place), T());
  }

  /// To shared memory, in runs of 16 bytes.
  FUSEDSC_DEVICE void store_tile(const Sums& sums) const {
    const int lane = thread_index() % 32, warp_row = thread_index() % 128 / 32 * 16;
#pragma unroll
    for (int eight = 0; eight < kFilters * kNeighbours / 8; ++eight) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + lane / 4 + half * 8;
#pragma unroll
        for (int run = 0; run < kProducts / 4; ++run) {
          Aligned<std::uint32_t, 4> words;
#pragma unroll
          for (int i = 0; i < 4; ++i) words.elements[i] = pair_of(sums, run * 8 + i * 2, eight * 4 + half * 2);
          const int number = (eight * 8 + lane % 4 * 2) / kNeighbours * kWindows / 8 + run;
          *reinterpret_cast<Aligned<std::uint32_t, 4>*>(out_ + number / 8 * kTileBytes +
                                                        place_of_run<128>(row, number % 8)) = words;
        }
      }
    }
  }

  /// To y: of each filter its windows' outputs lie side by side.
  FUSEDSC_DEVICE void store_outputs(const Sums& sums, int first_pixel) const {
    const int lane = thread_index() % 32, warp_row = thread_index() % 128 / 32 * 16;
    T* const to = static_cast<T*>(p_.y_data) + first_window_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t pixel = first_pixel + warp_row + lane / 4 + half * 8;
      if (pixel >= p_.pixels) continue;
#pragma unroll
      for (int number = 0; number < kFilters / 4; ++number) {
        const int place =
            number / 2 * 4 + half * 2 + number % 2;  // of a thread's sums; two of eight filters are its own
        const int output = (first_filter_ + number / 2 * 8 + lane % 4 * 2 + number % 2) * kWindows;
        if (output >= p_.outputs) continue;
        float outputs[kOwn];
#pragma unroll
        for (int window = 0; window < kOwn; ++window) outputs[window] = sum_of(sums, window, place);
        store<kOwn>(outputs, to + pixel * p_.y_row + output);
      }
    }
  }

  const SlidingWindowsParameters& p_;
  int first_window_, first_filter_;  ///< of the block
};

}  // namespace fusedsc::gpu::hopper
