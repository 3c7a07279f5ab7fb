/// The input gradient of sliding-channel convolutions of 16-bit channels_last tensors on Hopper GPUs, window by window:
/// for windows that share half of their channels with the next one. A channel belongs to two windows, whose filters lie
/// `kWindows` apart: threads gather these from tiles of grad_y, so that a product has neither zeros nor filters of
/// other windows.
///
/// A block keeps the weight of its channels in shared memory; positions come by TMA, 64 at a time to each
/// warpgroup, sixteen filters of all windows at a time.
#pragma once

#include "fusedsc/backward/sliding_channel/windows/sliding_channel_windows_parameters.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"

namespace fusedsc::gpu::hopper {

/// A block has kBlocks times kWidth channels. kWidth: neighbours that belong to the same two windows.
template <class T, int kWindows_, int kBlocks_, int kWidth_>
class SlidingWindowsInput : SlidingWindowsBlock {
 public:
  static constexpr int kWindows = kWindows_, kBlocks = kBlocks_, kWidth = kWidth_;
  static constexpr int kChannels = kBlocks * kWidth;
  /// Filters of a window that come at a time: a product takes 16.
  static constexpr int kDepth = kWindows == 4 ? 32 : 16;
  /// A copy of the weight: channels of a window, both halves of it if they are few.
  static constexpr int kBox = kWidth <= 16 ? 32 : 64;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int depth_steps, int box_steps, int groups, int stages) {
    return bytes_of(sizes(depth_steps, box_steps), groups, stages);
  }

  /// block: which of those that make this gradient.
  FUSEDSC_DEVICE static void run(const SlidingWindowsInputParameters& p, int block) {
    if (block >= p.channel_tiles * p.splits) return;  // it fills the last cluster
    SlidingWindowsInput product(p, block);
    product.loop();
  }

 private:
  static constexpr int kTiles = kDepth * kWindows / 64;  ///< of grad_y, 64 outputs each
  static constexpr int kStageBytes = kTiles * kTileBytes;
  static constexpr bool kHasAll = kBlocks == kWindows;          ///< windows; else one more than blocks
  static constexpr int kOwn = kHasAll ? kBlocks : kBlocks + 1;  ///< windows: that before the first block's, and on
  static constexpr bool kCopiesHalves = kWidth >= 64;           ///< of windows
  static constexpr int kHalfBoxes = kCopiesHalves ? kWidth / 64 : 1;
  static constexpr int kSlots = kCopiesHalves ? 2 * kBlocks * kHalfBoxes : kOwn;  ///< copies of some filters
  static constexpr int kRowBytes = kBox * 2, kStepBytes = kDepth * kRowBytes;
  static_assert(kChannels % 64 == 0 && kBlocks <= kWindows);
  using Sums = float[kBlocks][kWidth / 2];
  static constexpr int kProducts = kDepth / 16;
  using Factors = std::uint32_t[kProducts][kOwn][4];
  /// While one step's factors are multiplied, the next one's are gathered, if there are registers for both.
  static constexpr int kBuffers = kOwn * kProducts > 6 ? 1 : 2;

  FUSEDSC_HOST_DEVICE static constexpr Sizes sizes(int depth_steps, int box_steps) {
    const int boxes = (depth_steps + box_steps - 1) / box_steps;
    return {boxes * kSlots * box_steps * kStepBytes, boxes, kStageBytes, kRows * kChannels * 2};
  }

  FUSEDSC_DEVICE SlidingWindowsInput(const SlidingWindowsInputParameters& p, int block)
      : SlidingWindowsBlock(p, sizes(p.depth_steps, p.box_steps), block, kChannels),
        p_(p),
        first_window_(first_channel_ / p.step),
        box_bytes_(p.box_steps * kStepBytes) {}

  FUSEDSC_DEVICE void loop() {
    begin(
        p_.grad_y, p_.weight, [&](int slot) { start_next(slot); }, [&](int box) { start_weight(box); });
    StageTurn turn;
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      Sums sums = {};
      Factors factors[kBuffers];
#pragma unroll 1
      for (int step = 0; step < p_.depth_steps; step += kBuffers) {
        multiply_step(sums, factors[0], tile, step, turn);
        if (kBuffers == 2 && step + 1 < p_.depth_steps)
          multiply_step(sums, factors[kBuffers - 1], tile, step + 1, turn);
      }
      wait_for_products<0>();
      fence_all(sums);
      leave_tile(p_.grad_x, kChannels, tile, [&] { store_tile(sums); });
    }
    if (is_leader_) wait_for_stores();
  }

  // -------------------------------------------------------------------------------------------------- by one thread

  FUSEDSC_DEVICE void start_weight(int box) const {
    expect(weight_barriers_ + box, kSlots * box_bytes_);
#pragma unroll 1
    for (int slot = 0; slot < kSlots; ++slot) {
      int window = first_window_, channel = 0;
      if constexpr (kCopiesHalves) {
        const int part = slot / kHalfBoxes;  // first the own window's half, then that of the window before
        window += part / 2 - part % 2;
        channel = part % 2 * p_.step + first_channel_ % p_.step + slot % kHalfBoxes * 64;
      } else {
        window += kHasAll ? slot : slot - 1;
      }
      window = window < 0 ? window + kWindows : window;
      start_load(weight_ + (box * kSlots + slot) * box_bytes_, p_.weight,
                 ImagePlace{channel, box * p_.box_steps * kDepth, window, 0}, weight_barriers_ + box);
    }
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    expect(barriers_ + slot, kStageBytes);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      start_load(stages_ + slot * kStageBytes + i * kTileBytes, p_.grad_y, (next_step_ * kTiles + i) * 64,
                 first_pixel(next_tile_), barriers_ + slot);
    }
    count_step();
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) fence(sums[block]);
  }

  FUSEDSC_DEVICE void multiply_step(Sums& sums, Factors& factors, int tile, int step, StageTurn& turn) {
    const int box = step / p_.box_steps;
    if (tile == 0) wait(weight_barriers_ + box, 0);
    wait(barriers_ + turn.slot, turn.parity);
    if constexpr (kBuffers == 1) wait_for_products<0>();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) gather(factors[i], stages_ + turn.slot * kStageBytes, i * 16);
    const unsigned char* weight = weight_ + box * kSlots * box_bytes_ + step % p_.box_steps * kStepBytes;
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const unsigned char* rows = weight + i * 16 * kRowBytes;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const int own = kHasAll ? block : block + 1, before = kHasAll ? (block + kWindows - 1) % kWindows : block;
        multiply<true>(sums[block], factors[i][own], describe_weight(rows, block, own, false), step == 0 && i == 0,
                       T());
        multiply<true>(sums[block], factors[i][before], describe_weight(rows, block, before, true), false, T());
      }
    }
    commit_products();
    fence_all(sums);
    // Not before the products have begun: until then what was read of the tile may still be on its way to registers.
    group_barrier(group_);
    if (is_leader_) start_next(turn.slot);
    turn.next(p_.stages);
    if constexpr (kBuffers == 2) wait_for_products<1>();  // which read the other factors
  }

  /// Of a block of channels: in the window's first half, or in its second one.
  FUSEDSC_DEVICE std::uint64_t describe_weight(const unsigned char* weight, int block, int window, bool second) const {
    if constexpr (kCopiesHalves) {
      return describe_blocks<kRowBytes>(weight + (block * 2 + (second ? 1 : 0)) * kHalfBoxes * box_bytes_, box_bytes_);
    } else {
      return describe<kRowBytes>(weight + window * box_bytes_) + static_cast<unsigned>(second ? kWidth * 2 / 16 : 0);
    }
  }

  /// Two neighbouring outputs, of filter `filter` and windows `pair` * 2 and on, of a position.
  FUSEDSC_DEVICE static std::uint32_t pair_at(const unsigned char* tiles, int row, int filter, int pair) {
    const int output = filter * kWindows + pair * 2;
    return *reinterpret_cast<const std::uint32_t*>(tiles + output / 64 * kTileBytes +
                                                   place_of_run<128>(row, output % 64 / 8) + output % 8 * 2);
  }
  FUSEDSC_DEVICE static std::uint32_t lows(std::uint32_t a, std::uint32_t b) { return (a & 0xffffu) | b << 16; }
  FUSEDSC_DEVICE static std::uint32_t highs(std::uint32_t a, std::uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

  /// factors = of each of the block's windows, what products take of 64 positions and 16 filters.
  FUSEDSC_DEVICE void gather(std::uint32_t (&factors)[kOwn][4], const unsigned char* tiles, int first_filter) const {
    const int lane = thread_index() % 32, first_row = thread_index() % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + i % 2 * 8, filter = first_filter + i / 2 * 8 + lane % 4 * 2;
      if constexpr (kWindows == 4) {
        // Both filters of all windows are 16 bytes.
        const auto run = *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(tiles + filter / 16 * kTileBytes +
                                                                             place_of_run<128>(row, filter % 16 / 2));
        const std::uint32_t all[4] = {lows(run.elements[0], run.elements[2]), highs(run.elements[0], run.elements[2]),
                                      lows(run.elements[1], run.elements[3]), highs(run.elements[1], run.elements[3])};
#pragma unroll
        for (int own = 0; own < kOwn; ++own) {
          if constexpr (kHasAll) {
            factors[own][i] = all[own];
          } else {
            const int window = (first_window_ + own + kWindows - 1) % kWindows;
            factors[own][i] = window < 2 ? (window == 0 ? all[0] : all[1]) : (window == 2 ? all[2] : all[3]);
          }
        }
      } else if constexpr (kBlocks == 1) {
#pragma unroll
        for (int own = 0; own < kOwn; ++own) {
          const int window = (first_window_ + own + kWindows - 1) % kWindows;
          const std::uint32_t a = pair_at(tiles, row, filter, window / 2),
                              b = pair_at(tiles, row, filter + 1, window / 2);
          factors[own][i] = window % 2 == 0 ? lows(a, b) : highs(a, b);
        }
      } else {
        // Blocks begin with an even window, and that before it is an odd one.
        if constexpr (!kHasAll) {
          const int pair = (first_window_ + kWindows - 1) % kWindows / 2;
          factors[0][i] = highs(pair_at(tiles, row, filter, pair), pair_at(tiles, row, filter + 1, pair));
        }
#pragma unroll
        for (int block = 0; block < kBlocks; block += 2) {
          const int pair = first_window_ / 2 + block / 2, own = kHasAll ? block : block + 1;
          const std::uint32_t a = pair_at(tiles, row, filter, pair), b = pair_at(tiles, row, filter + 1, pair);
          factors[own][i] = lows(a, b);
          factors[own + 1][i] = highs(a, b);
        }
      }
    }
  }

  /// To shared memory.
  FUSEDSC_DEVICE void store_tile(const Sums& sums) const {
    const int lane = thread_index() % 32, row = thread_index() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int run = 0; run < kChannels / 8; run += 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = run * 4 + 2 * i;
        const float* pair = sums[first / (kWidth / 2)] + first % (kWidth / 2);
        words[i] = to_bits(pair[0], pair[1], T());
      }
      store_matrices(out_ + run / 8 * kTileBytes + place_of_run<128>(row, run % 8 + lane / 16), words);
    }
  }

  const SlidingWindowsInputParameters& p_;
  int first_window_, box_bytes_;
};

}  // namespace fusedsc::gpu::hopper
