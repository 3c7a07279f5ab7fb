/// Pointwise convolution on Hopper GPUs, weight and bias gradients. The sum over all positions is split among blocks,
/// and in one of two ways within a block (pointwise_hopper_weight_block.h):
/// - Sliced-K: each warpgroup has positions of its own, which its leader copies, and sums of the whole tile. Only so
///   are there prologues: each group changes its x in place (pointwise_hopper_weight_fusion.h).
/// - Warp-specialised: a warp copies, groups have 64 outputs each of the same positions. So a tile may be larger than a
///   group's sums, and less comes to shared memory for each product.
///
/// Blocks that share a tile of the weight run as a cluster and add their sums through shared memory; if more than a
/// cluster share one, a second kernel adds the clusters' sums (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_fusion.h"

namespace fusedsc::gpu::hopper {

/// Block_: a PointwiseWeightBlock.
template <class Block_>
class PointwiseWeightProduct {
 public:
  using Block = Block_;
  static constexpr int kThreads = Block::kThreads;

  FUSEDSC_DEVICE static void run(const PointwiseWeightParameters& p) {
    PointwiseWeightProduct product(p);
    product.run_all();
  }

 private:
  using T = typename Block::T;
  using Sums = typename Block::Sums;
  using Fusion = PointwiseWeightFusion<Block>;
  static constexpr bool kFused = Block::kFused, kBias = Block::kBias, kHasCopyWarp = Block::kHasCopyWarp;

  FUSEDSC_DEVICE explicit PointwiseWeightProduct(const PointwiseWeightParameters& p) : p_(p), b_(p) {}

  FUSEDSC_DEVICE void run_all() {
    const bool copies = kHasCopyWarp ? thread_index() == Block::kProductThreads : b_.thread == 0;
    if (copies) {
      if (kHasCopyWarp || b_.group == 0) {
        prefetch(p_.x);
        prefetch(p_.grad_y);
        if (kFused) prefetch(p_.output);
      }
      for (int i = 0; i < p_.stages; ++i) {
        initialise(b_.full + i);
        if (kHasCopyWarp) initialise(b_.done + i, Block::kGroups * 4);
      }
      publish();
    }
    // Where a warp copies, the others touch nothing of the previous kernel's until their end.
    if (copies || !kHasCopyWarp) wait_for_previous_kernel();
    if (copies) {
      if (lets_next_start_early()) let_next_kernel_start();
#pragma unroll 1
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    if constexpr (kFused) Fusion(b_).read_vectors();
    block_barrier();
    if (!kHasCopyWarp || b_.group < Block::kGroups) multiply_all();
    else if (copies) refill_all();
  }

  // -------------------------------------------------------------------------------------- by the thread that copies

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_step_ >= b_.steps) return;
    const int pixel = b_.first_pixel(next_step_);
    unsigned char* to = b_.stage(slot);
    Barrier* barrier = b_.full + slot;
    expect(barrier, Block::kStageBytes);
    for (int i = 0; i < Block::kBoxes; ++i, to += Block::kBoxBytes) {
      start_load(to, p_.x, b_.first_channel + i * Block::kBox, pixel, barrier);
    }
    for (int i = 0; i < Block::kRowBlocks; ++i, to += Block::kRowTileBytes) {
      start_load(to, p_.grad_y, b_.first_output + i * 64, pixel, barrier);
      if (kFused) start_load(to + Block::kPartBytes, p_.output, b_.first_output + i * 64, pixel, barrier);
    }
    ++next_step_;
  }

  FUSEDSC_DEVICE void refill_all() {
    StageTurn turn;
#pragma unroll 1
    while (next_step_ < b_.steps) {
      wait(b_.done + turn.slot, turn.parity);
      start_next(turn.slot);
      turn.next(p_.stages);
    }
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void multiply_all() {
    Sums sums = {};
    StageTurn turn;
    int last_slot = -1;
#pragma unroll 1
    for (int step = 0; step < b_.steps; ++step) {
      wait(b_.full + turn.slot, turn.parity);
      if constexpr (kFused) {
        if (p_.has_prologue) {
          Fusion(b_).change_x(b_.stage(turn.slot), p_.pixels - b_.first_pixel(step));
          publish();
        }
        group_barrier(b_.group);
        multiply_tiles(sums, b_.stage(turn.slot));
        wait_for_products<0>();  // here, or the compiler would not let them run asynchronously
        fence_all(sums);
        give_back(turn.slot);
      } else {
        multiply_tiles(sums, b_.stage(turn.slot));
        if (last_slot >= 0) {
          wait_for_products<1>();
          give_back(last_slot);
        }
      }
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence_all(sums);
    if (kHasCopyWarp) wait_for_previous_kernel();  // which may use the workspace
    if (!lets_next_start_early()) let_next_kernel_start();
    if constexpr (kFused) Fusion(b_).apply_gradient_prologue(sums);
    if constexpr (kBias) Fusion(b_).leave_bias(sums);
    b_.leave(sums.products[0]);
  }

  /// A stage that the group has read.
  FUSEDSC_DEVICE void give_back(int slot) {
    if constexpr (kHasCopyWarp) return arrive_as_warp(b_.done + slot);
    group_barrier(b_.group);
    if (b_.thread == 0) start_next(slot);
  }

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int part = 0; part < Block::kParts; ++part) {
#pragma unroll
      for (int i = 0; i < Block::kOwnBlocks; ++i) {
        fence(sums.products[part][i]);
        if constexpr (kBias) fence(sums.of_rows[part][i]);
      }
    }
    if constexpr (kFused) fence(sums.of_channels);
  }

  /// Sums of a single tensor are products with ones.
  FUSEDSC_DEVICE void multiply_tiles(Sums& sums, const unsigned char* stage) const {
    constexpr int kBoxRowBytes = Block::kBoxRowBytes;
    const std::uint64_t x = describe_blocks<kBoxRowBytes>(stage, Block::kBoxBytes),
                        rows = describe<128>(stage + Block::kXBytes + b_.row_block() * Block::kRowTileBytes),
                        ones = describe_constant(b_.vectors);
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < Block::kDepth; k += 16) {
      const std::uint64_t x_step = x + k * kBoxRowBytes / 16, rows_step = rows + k * 128 / 16;
#pragma unroll
      for (int part = 0; part < Block::kParts; ++part) {
#pragma unroll
        for (int i = 0; i < Block::kOwnBlocks; ++i) {
          const std::uint64_t row = rows_step + (part * Block::kPartBytes + i * Block::kRowTileBytes) / 16;
          multiply<true, true>(sums.products[part][i], row, x_step, false, T());
          if constexpr (kBias) multiply<false, true>(sums.of_rows[part][i], row, ones, false, T());
        }
      }
      if constexpr (kFused) {
#pragma unroll
        for (int j = 0; j < Block::kBoxes; ++j) {
          multiply<false, true>(sums.of_channels[j], x_step + j * Block::kBoxBytes / 16, ones, false, T());
        }
      }
    }
    commit_products();
    fence_all(sums);
  }

  /// A second kernel would only take this one's place; another call's finds multiprocessors without a tile. Not before
  /// the previous kernel has ended: the next one may read what that has written without waiting.
  FUSEDSC_DEVICE bool lets_next_start_early() const {
    return kHasCopyWarp && p_.cluster == 1 && p_.tiles.partials == nullptr;
  }

  const PointwiseWeightParameters& p_;
  Block b_;
  int next_step_ = 0;  ///< what is copied next
};

}  // namespace fusedsc::gpu::hopper
