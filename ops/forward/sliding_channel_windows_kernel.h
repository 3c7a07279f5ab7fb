/// Sliding-channel convolution of 16-bit channels_last tensors on Hopper GPUs, window by window: for windows that share
/// half of their channels with the next one. Filters of one window lie `kWindows` apart, so a product takes these from
/// the weight as it is, with no zeros between them, and what a thread has of all windows for one filter each are
/// neighbouring channels of y.
///
/// A block keeps the weight of its filters in block memory; positions come by the copy engine, 64 at a time to each
/// group of four warps, 64 channels at a time.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/hopper_products.h"
#include "fusedsc/common/gpu/hopper_stages.h"
#include "fusedsc/forward/sliding_channel_windows_parameters.h"

namespace fusedsc::gpu::hopper {

/// kFilters: of each window, in a block. kPart: channels that come at a time and have the same two windows: the step
/// from one window to the next, 64 at most.
template <class T, int kWindows_, int kFilters_, int kPart_>
class SlidingWindowsProduct {
 public:
  static constexpr int kWindows = kWindows_, kFilters = kFilters_, kPart = kPart_;
  static constexpr int kChannels = kWindows * kFilters;  ///< of y, of a block
  static constexpr int kMostThreads = 512;
  /// A copy of the weight: channels of a window; windows, which together have 32 rows.
  static constexpr int kBox = kPart == 16 ? 32 : 64, kBoxWindows = 32 / kFilters;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int step, int groups, int stages) {
    return 1024 + kChannels * 4 * step + groups * (stages * kStageBytes + kOutBytes) +
           8 * (kBoxGroups * boxes(step) + groups * stages);
  }

  FUSEDSC_DEVICE static void run(const SlidingWindowsParameters& p) {
    SlidingWindowsProduct product(p);
    product.loop();
  }

 private:
  static constexpr int kRows = 64, kDepth = 64;  ///< of a tile of x
  static constexpr int kStageBytes = kRows * kDepth * 2, kOutBytes = kRows * kChannels * 2, kBlockBytes = kRows * 128;
  static constexpr int kRowBytes = kBox * 2, kBoxBytes = 32 * kRowBytes, kBoxGroups = kChannels / 32;
  static constexpr int kBlocks = kDepth / kPart;  ///< of channels with the same windows, in a tile of x
  static_assert(kChannels % 64 == 0 && kWindows % 4 == 0 && (kPart == 16 || kPart == 32 || kPart == 64));
  using Sums = float[kWindows][kFilters / 2];

  /// Copies that make a window.
  FUSEDSC_HOST_DEVICE static constexpr int boxes(int step) { return 2 * step / kBox; }

  FUSEDSC_DEVICE explicit SlidingWindowsProduct(const SlidingWindowsParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    is_leader_ = thread_index() % 128 == 0;
    first_channel_ = static_cast<int>(block_index()) % p.channel_tiles * kChannels;
    first_tile_ = static_cast<int>(block_index()) / p.channel_tiles * p.groups + group_;
    stride_ = p.splits * p.groups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;
    boxes_ = boxes(p.step);

    auto* memory = static_cast<unsigned char*>(block_memory());
    memory += padding_before_tiles(memory);
    weight_ = memory;
    memory += kBoxGroups * boxes_ * kBoxBytes;
    stages_ = memory + group_ * (p.stages * kStageBytes + kOutBytes);
    out_ = stages_ + p.stages * kStageBytes;
    memory += p.groups * (p.stages * kStageBytes + kOutBytes);
    weight_barriers_ = reinterpret_cast<Barrier*>(memory);
    barriers_ = weight_barriers_ + kBoxGroups * boxes_ + group_ * p.stages;
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (first_tile_ + tile * stride_) * kRows; }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      prefetch(p_.x);
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
    }
    if (thread_index() == 32) {
      prefetch(p_.weight);
      for (int i = 0; i < kBoxGroups * boxes_; ++i) initialise(weight_barriers_ + i);
    }
    publish();
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    if (thread_index() == 32) start_weight();
    block_barrier();
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Sums sums = {};
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
        start_store(p_.y, first_channel_ + block * 64, first_pixel(tile), out_ + block * kBlockBytes);
      }
      commit_stores();
    }
    if (is_leader_) wait_for_stores();
  }

  // -------------------------------------------------------------------------------------------------- by one thread

  /// In the order in which they are wanted: the first half of a window, the second one of that before it.
  FUSEDSC_DEVICE void start_weight() const {
    const int halves = boxes_ / 2;
#pragma unroll 1
    for (int group = 0; group < kBoxGroups; ++group) {
      if (halves == 0) start_box((group + kBoxGroups - 1) % kBoxGroups, 0);
#pragma unroll 1
      for (int box = 0; box < halves; ++box) {
        start_box(group, box);
        start_box((group + kBoxGroups - 1) % kBoxGroups, halves + box);
      }
    }
  }
  FUSEDSC_DEVICE void start_box(int group, int box) const {
    const int number = group * boxes_ + box;
    expect(weight_barriers_ + number, kBoxBytes);
    start_load(weight_ + number * kBoxBytes, p_.weight,
               ImagePlace{box * kBox, first_channel_ / kWindows, group * kBoxWindows, 0}, weight_barriers_ + number);
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kStageBytes);
    start_load(stages_ + slot * kStageBytes, p_.x, next_step_ * kDepth, first_pixel(next_tile_), barriers_ + slot);
    if (++next_step_ == p_.depth_steps) {
      next_step_ = 0;
      ++next_tile_;
    }
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  /// The copy with a window's weights from k on.
  FUSEDSC_DEVICE int box_of(int window, int k) const { return window / kBoxWindows * boxes_ + k / kBox; }

  FUSEDSC_DEVICE void wait_for_weight(int first, int part) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      wait(weight_barriers_ + box_of(first + block, part), 0);
      wait(weight_barriers_ + box_of((first + block + kWindows - 1) % kWindows, p_.step + part), 0);
    }
  }

  FUSEDSC_DEVICE std::uint64_t describe_weight(int window, int k) const {
    return describe<kRowBytes>(weight_ + box_of(window, k) * kBoxBytes + window % kBoxWindows * kFilters * kRowBytes) +
           static_cast<unsigned>(k % kBox * 2 / 16);
  }

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int window = 0; window < kWindows; ++window) fence(sums[window]);
  }

  /// Each channel belongs to the first half of a window and to the second half of the one before it. `first`: the
  /// window that begins where the tile of x does, or `part` channels before it.
  FUSEDSC_DEVICE void multiply_stage(Sums& sums, int first, int part, int slot) const {
    const std::uint64_t rows = describe<128>(stages_ + slot * kStageBytes);
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int window = first + block, before = (window + kWindows - 1) % kWindows;
      const std::uint64_t own = describe_weight(window, part), other = describe_weight(before, p_.step + part);
#pragma unroll
      for (int k = 0; k < kPart; k += 16) {
        const std::uint64_t from = rows + (block * kPart + k) * 2 / 16;
        const bool begins = part == 0 && k == 0;
        // The last window's second half comes first.
        multiply<false>(sums[window], from, own + k * 2 / 16, begins && window != kWindows - 1, T());
        multiply<false>(sums[before], from, other + k * 2 / 16, begins && window == 0, T());
      }
    }
    commit_products();
    fence_all(sums);
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
            words.elements[i] = to_bits(sums[channel % kWindows][place], sums[channel % kWindows + 1][place], T());
          }
          const int number = (eight * 8 + lane % 4 * 2) * kWindows / 8 + run;
          *reinterpret_cast<Aligned<std::uint32_t, 4>*>(out_ + number / 8 * kBlockBytes +
                                                        place_of_run<128>(row, number % 8)) = words;
        }
      }
    }
  }

  const SlidingWindowsParameters& p_;
  int group_, first_channel_, first_tile_, stride_, tiles_, boxes_;
  int next_tile_ = 0, next_step_ = 0;
  bool is_leader_;
  unsigned char *weight_, *stages_, *out_;
  Barrier *weight_barriers_, *barriers_;
};

}  // namespace fusedsc::gpu::hopper
