/// Sliding-channel convolution of 16-bit channels_last tensors on Hopper GPUs, window by window: for windows that share
/// half of their channels with the next one. Filters of one window lie `kWindows` apart, so a product takes these from
/// the weight as it is, with no zeros between them, and what a thread has of all windows for one filter each are
/// neighbouring channels of y.
///
/// A block keeps the weight of its filters in block memory; positions come by the copy engine, 64 at a time to each
/// group of four warps, 64 channels at a time. Where the step is 8 channels, half of what a product takes, all channels
/// come at a time, and threads read a window's channels from block memory, wherever it begins.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper_products.h"
#include "fusedsc/common/gpu/hopper_stages.h"
#include "fusedsc/forward/sliding_channel_windows_parameters.h"

namespace fusedsc::gpu::hopper {

/// kFilters: of each window, in a block. kPart: channels that have the same two windows, and come at a time: the step
/// from one window to the next, 64 at most.
template <class T, int kWindows_, int kFilters_, int kPart_>
class SlidingWindowsProduct {
 public:
  static constexpr int kWindows = kWindows_, kFilters = kFilters_, kPart = kPart_;
  static constexpr int kChannels = kWindows * kFilters;  ///< of y, of a block
  /// Channels of a copy of the weight, of all filters of a window. Of 16 those behind them come, too.
  static constexpr int kBox = kPart == 64 ? 64 : 32;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int step, int groups, int stages) {
    return 1024 + parts(step) * kPartBytes + groups * (stages * kStageBytes + kOutBytes) +
           8 * (parts(step) + groups * stages);
  }

  FUSEDSC_DEVICE static void run(const SlidingWindowsParameters& p) {
    SlidingWindowsProduct product(p);
    product.loop();
  }

 private:
  static constexpr int kRows = 64, kDepth = 64;  ///< of a tile of x
  static constexpr int kTileBytes = kRows * 128, kOutBytes = kRows * kChannels * 2;
  static constexpr bool kWhole = kPart == 8;  ///< windows are multiplied whole
  static constexpr int kTiles = kWhole ? kWindows * kPart / kDepth : 1, kStageBytes = kTiles * kTileBytes;
  static constexpr int kBlocks = kTiles * kDepth / kPart;  ///< of channels with the same windows, that come at a time
  static constexpr int kRowBytes = kBox * 2, kBoxBytes = kFilters * kRowBytes;
  /// The weight of a part of the channels: of the window of which they are the second half, of that which they begin;
  /// or a window's.
  static constexpr int kPartBytes = (kWhole ? 1 : 2) * kBoxBytes;
  static_assert(kChannels % 64 == 0 && kWindows % 4 == 0 && (kPart == 16 || kPart == 32 || kPart == 64 || kWhole));
  static_assert(!kWhole || kWindows % 8 == 0);
  static constexpr int kWeightShares = 3;  ///< warps of the first group, but for its leader's, copy some of it each
  /// Of each block of channels with the same windows: of that of which they are the second half, of that which they
  /// begin; or of each window.
  using Sums = float[kWindows][kWhole ? kFilters / 2 : kFilters];

  /// Of all channels.
  FUSEDSC_HOST_DEVICE static constexpr int parts(int step) { return kWindows * (step / kPart); }

  FUSEDSC_DEVICE explicit SlidingWindowsProduct(const SlidingWindowsParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    is_leader_ = thread_index() % 128 == 0;
    first_channel_ = static_cast<int>(block_index()) % p.channel_tiles * kChannels;
    first_tile_ = static_cast<int>(block_index()) / p.channel_tiles * p.groups + group_;
    stride_ = p.splits * p.groups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;
    parts_ = parts(p.step);

    auto* memory = static_cast<unsigned char*>(block_memory());
    memory += padding_before_tiles(memory);
    weight_ = memory;
    memory += parts_ * kPartBytes;
    stages_ = memory + group_ * (p.stages * kStageBytes + kOutBytes);
    out_ = stages_ + p.stages * kStageBytes;
    memory += p.groups * (p.stages * kStageBytes + kOutBytes);
    weight_barriers_ = reinterpret_cast<Barrier*>(memory);
    barriers_ = weight_barriers_ + parts_ + group_ * p.stages;
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (first_tile_ + tile * stride_) * kRows; }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      prefetch(p_.x);
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
    }
    const int share = thread_index() < 128 && thread_index() % 32 == 0 ? thread_index() / 32 - 1 : -1;
    if (share >= 0) {
      prefetch(p_.weight);
      for (int i = share; i < parts_; i += kWeightShares) initialise(weight_barriers_ + i);
    }
    publish();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    if (share >= 0) start_weight(share);
    block_barrier();
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Sums sums;  // set by the first product with each
      int last_slot = -1;
#pragma unroll
      for (int first = 0; first < kWindows; first += kBlocks) {
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
      fence_all(sums);
      if (is_leader_) wait_for_stores();
      group_barrier(group_);  // all are done with the last tiles of x and of y
      if (is_leader_) start_next(last_slot);
      store_tile(sums);
      publish();
      group_barrier(group_);
      if (!is_leader_) continue;
      for (int block = 0; block < kChannels / 64; ++block) {
        start_store(p_.y, first_channel_ + block * 64, first_pixel(tile), out_ + block * kTileBytes);
      }
      commit_stores();
    }
    if (is_leader_) wait_for_stores();
  }

  // -------------------------------------------------------------------------------------------------- by one thread

  /// In the order in which they are wanted. A thread alone would take longer to ask for all than they take to come.
  FUSEDSC_DEVICE void start_weight(int share) const {
    const int parts_of_window = p_.step / kPart;
#pragma unroll 1
    for (int part = share; part < parts_; part += kWeightShares) {
      const int window = part / parts_of_window, from = part % parts_of_window * kPart;
      unsigned char* to = weight_ + part * kPartBytes;
      expect(weight_barriers_ + part, kPartBytes);
      if (!kWhole) start_box(to, (window + kWindows - 1) % kWindows, p_.step + from, weight_barriers_ + part);
      start_box(to + kPartBytes - kBoxBytes, window, from, weight_barriers_ + part);
    }
  }
  FUSEDSC_DEVICE void start_box(unsigned char* to, int window, int channel, Barrier* barrier) const {
    start_load(to, p_.weight, ImagePlace{channel, first_channel_ / kWindows, window, 0}, barrier);
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kStageBytes);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      start_load(stages_ + slot * kStageBytes + i * kTileBytes, p_.x, (next_step_ * kTiles + i) * kDepth,
                 first_pixel(next_tile_), barriers_ + slot);
    }
    if (++next_step_ == p_.depth_steps) {
      next_step_ = 0;
      ++next_tile_;
    }
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  /// Of the channels from `from` on of those with which a window begins.
  FUSEDSC_DEVICE int part_of(int window, int from) const { return window * (p_.step / kPart) + from / kPart; }

  FUSEDSC_DEVICE void wait_for_weight(int first, int from) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) wait(weight_barriers_ + part_of(first + block, from), 0);
  }

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int window = 0; window < kWindows; ++window) fence(sums[window]);
  }

  /// Each channel belongs to the second half of a window and to the first half of the next one: a product makes both,
  /// which takes no longer than one of them. `first`: the window that begins where the tile of x does, or `part`
  /// channels before it.
  FUSEDSC_DEVICE void multiply_stage(Sums& sums, int first, int part, int slot) const {
    if constexpr (kWhole) return multiply_whole(sums, stages_ + slot * kStageBytes);
    const std::uint64_t rows = describe<128>(stages_ + slot * kStageBytes);
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const std::uint64_t pair = describe<kRowBytes>(weight_ + part_of(first + block, part) * kPartBytes);
#pragma unroll
      for (int k = 0; k < kPart; k += 16) {
        multiply<false>(sums[first + block], rows + (block * kPart + k) * 2 / 16, pair + k * 2 / 16,
                        part == 0 && k == 0, T());
      }
    }
    commit_products();
    fence_all(sums);
  }

  /// All windows, each with the block of channels that it begins with, and the next one.
  FUSEDSC_DEVICE void multiply_whole(Sums& sums, const unsigned char* x) const {
    const int lane = thread_index() % 32, row = thread_index() % 128 / 32 * 16 + lane % 16;
    std::uint32_t factors[kWindows][4];
#pragma unroll
    for (int window = 0; window < kWindows; ++window) {
      const int run = (window + lane / 16) % kWindows;
      load_matrices(x + run / 8 * kTileBytes + place_of_run<128>(row, run % 8), factors[window]);
    }
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int window = 0; window < kWindows; ++window) {
      multiply<false>(sums[window], factors[window], describe<kRowBytes>(weight_ + window * kPartBytes), true, T());
    }
    commit_products();
    fence_all(sums);
  }

  /// A window's sum of both of its halves.
  FUSEDSC_DEVICE static float sum_of(const Sums& sums, int window, int place) {
    if constexpr (kWhole) return sums[window][place];
    return sums[window][kFilters / 2 + place] + sums[(window + 1) % kWindows][place];
  }

  /// To block memory, in runs of 16 bytes.
  FUSEDSC_DEVICE void store_tile(const Sums& sums) const {
    const int lane = thread_index() % 32, warp_row = thread_index() % 128 / 32 * 16;
#pragma unroll
    for (int eight = 0; eight < kFilters / 8; ++eight) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + lane / 4 + half * 8;
#pragma unroll
        for (int run = 0; run < kWindows / 4; ++run) {
          Aligned<std::uint32_t, 4> words;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int channel = run * 8 + i * 2, place = eight * 4 + half * 2 + channel / kWindows;
            words.elements[i] =
                to_bits(sum_of(sums, channel % kWindows, place), sum_of(sums, channel % kWindows + 1, place), T());
          }
          const int number = (eight * 8 + lane % 4 * 2) * kWindows / 8 + run;
          *reinterpret_cast<Aligned<std::uint32_t, 4>*>(out_ + number / 8 * kTileBytes +
                                                        place_of_run<128>(row, number % 8)) = words;
        }
      }
    }
  }

  const SlidingWindowsParameters& p_;
  int group_, first_channel_, first_tile_, stride_, tiles_, parts_;
  int next_tile_ = 0, next_step_ = 0;
  bool is_leader_;
  unsigned char *weight_, *stages_, *out_;
  Barrier *weight_barriers_, *barriers_;
};

}  // namespace fusedsc::gpu::hopper
