/// Pointwise convolution on Hopper GPUs, input and weight gradient in one pass over grad_y and x, for a convolution
/// followed by BatchNorm, whose output need not be read (pointwise_hopper_n_resident_image.h).
///
/// For few channels, and outputs whose sums a warpgroup can keep: each group goes its own way through tiles of 64
/// positions, which TMA brings, multiplies them both ways from where they lie, and keeps its own sums.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_block.h"

namespace fusedsc::gpu::hopper {

/// Block: an NResidentBlock of several slices.
template <class Block>
class PointwiseNResidentProduct {
 public:
  static constexpr int kThreads = Block::kThreads;

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(int stages, bool has_added) {
    return 1024 + Block::kImageBytes + tile_bytes(stages, has_added) + Block::kOnesBytes + barrier_bytes(stages) +
           kGroups * Block::kVectorFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseNResidentParameters& p) {
    PointwiseNResidentProduct product(p);
    product.loop();
  }

 private:
  using Sums = typename Block::Sums;
  static constexpr int kGroups = Block::kGroups, kOutputBlocks = Block::kOutputBlocks, kQuads = Block::kQuads;
  static constexpr int kXBytes = 64 * Block::kRowBytes;
  static constexpr int kGradBytes = (kOutputBlocks - 1) * Block::kTileBytes + 64 * Block::kLastWide * 2;
  static constexpr int kStageBytes = kGradBytes + kXBytes, kSumBytes = kGroups * kQuads * 128 * 16;
  static_assert(2 * Block::kSquareBytes <= kStageBytes);

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return (kGroups * (stages + 2) * 8 + 15) / 16 * 16;
  }
  /// Tiles, and results; the sums take their place.
  FUSEDSC_HOST_DEVICE static constexpr int tile_bytes(int stages, bool has_added) {
    const int tiles = kGroups * (stages * kStageBytes + (has_added ? 2 : 1) * kXBytes);
    return tiles > kSumBytes ? tiles : kSumBytes;
  }

  FUSEDSC_DEVICE explicit PointwiseNResidentProduct(const PointwiseNResidentParameters& p) : p_(p), b_(p) {
    first_tile_ = static_cast<int>(block_index()) * kGroups + b_.group;
    stride_ = p.splits * kGroups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + stride_ - 1) / stride_ : 0;
    unsigned char* memory = b_.image + Block::kImageBytes;
    quads_ = reinterpret_cast<Four*>(memory);
    stages_ = memory + b_.group * p.stages * kStageBytes;
    out_ = memory + kGroups * p.stages * kStageBytes + b_.group * (p.has_added ? 2 : 1) * kXBytes;
    b_.ones = memory + tile_bytes(p.stages, p.has_added);
    memory = b_.ones + Block::kOnesBytes;
    barriers_ = reinterpret_cast<Barrier*>(memory) + b_.group * (p.stages + 2);
    b_.vectors = reinterpret_cast<float*>(memory + barrier_bytes(p.stages)) + b_.group * Block::kVectorFloats;
  }

  FUSEDSC_DEVICE void loop() {
    const bool is_leader = b_.thread == 0;
    let_next_kernel_start();
    if (is_leader) {
      for (int i = 0; i < p_.stages + 2; ++i) initialise(barriers_ + i);
    }
    b_.fill_ones();
    publish();
    wait_for_previous_kernel();
    if (is_leader) {
      for (int i = 0; i < p_.stages; ++i) start_tile(i);
      start_added(0);
    }
    b_.copy_image();
    publish();
    block_barrier();
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + turn.slot, turn.parity);
      multiply_tile(sums, stages_ + turn.slot * kStageBytes);
      if (is_leader) {
        wait_for_stores();
        start_added(tile + 1);
      }
      wait_for_products<0>();
      Block::fence_all(sums);
      group_barrier(b_.group);  // all are done with the tiles, and the tile of results is free
      if (is_leader) start_tile(tile + p_.stages);
      unsigned char* out = out_ + (p_.has_added ? tile % 2 * kXBytes : 0);
      if (p_.has_added) wait(barriers_ + p_.stages + tile % 2, tile / 2 % 2);
#pragma unroll
      for (int run = 0; run < Block::kColumns / 8; ++run) {
        const float* four = sums.grad_x + run * 4;
        b_.put_results({{four[0], four[1], four[2], four[3]}}, run, out);
      }
      publish();
      group_barrier(b_.group);
      if (is_leader) {
        start_store(p_.grad_x, 0, first_pixel(tile), out);
        commit_stores();
      }
      turn.next(p_.stages);
    }
    b_.finish(sums, stages_);
    if (is_leader) wait_for_stores();
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums);
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE int first_pixel(int tile) const { return (first_tile_ + tile * stride_) * 64; }

  FUSEDSC_DEVICE void start_tile(int tile) const {
    if (tile >= tiles_) return;
    unsigned char* to = stages_ + tile % p_.stages * kStageBytes;
    Barrier* barrier = barriers_ + tile % p_.stages;
    expect(barrier, kStageBytes);
    const int pixel = first_pixel(tile);
    start_load(to + kGradBytes, p_.x, 0, pixel, barrier);
#pragma unroll
    for (int i = 0; i < kOutputBlocks; ++i) {
      const bool is_last = i == kOutputBlocks - 1;
      start_load(to + i * Block::kTileBytes, is_last ? p_.last_grad_y : p_.grad_y, i * 64, pixel, barrier);
    }
  }

  /// To where the results will be.
  FUSEDSC_DEVICE void start_added(int tile) const {
    if (!p_.has_added || tile >= tiles_) return;
    Barrier* barrier = barriers_ + p_.stages + tile % 2;
    expect(barrier, kXBytes);
    start_load(out_ + tile % 2 * kXBytes, p_.added, 0, first_pixel(tile), barrier);
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void multiply_tile(Sums& sums, const unsigned char* tile) const {
    const unsigned char* x = tile + kGradBytes;
    Block::fence_all(sums);
    begin_products();
    b_.multiply_image(sums, x);
    b_.multiply_squares(sums, x, x);
#pragma unroll
    for (int i = 0; i < kOutputBlocks; ++i) b_.multiply_block(sums, i, tile + i * Block::kTileBytes, x);
    commit_products();
    Block::fence_all(sums);
  }

  // --------------------------------------------------------------------------------------- by all threads of a block

  FUSEDSC_DEVICE void leave(const Sums& sums) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      quads_[(b_.group * kQuads + quad) * 128 + b_.thread] = Block::four_of(sums, quad);
    }
    block_barrier();
    for (int item = thread_index(); item < kQuads * 128; item += kThreads) {
      if (!b_.exists(item / 128, item % 128)) continue;
      Four sum = quads_[item];
#pragma unroll
      for (int group = 1; group < kGroups; ++group) {
        const Four other = quads_[group * kQuads * 128 + item];
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.elements[i] += other.elements[i];
      }
      b_.partials()[item] = sum;
    }
  }

  using Four = typename Block::Four;

  const PointwiseNResidentParameters& p_;
  Block b_;
  int first_tile_, stride_, tiles_;
  unsigned char *stages_, *out_;
  Barrier* barriers_;
  Four* quads_;
};

}  // namespace fusedsc::gpu::hopper
