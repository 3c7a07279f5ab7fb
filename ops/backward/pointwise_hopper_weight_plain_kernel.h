/// Pointwise convolution on Hopper GPUs, weight gradient of tensors without seams: the sum over all positions is cut
/// among blocks, and in a block among shares of its groups of four warps. The groups of a share have 64 outputs each of
/// the same positions, so that tiles are larger than a group's sums, and less comes to block memory for each product. A
/// warp more brings the tiles. Blocks that share a tile of the weight run as a cluster and add their sums through block
/// memory; if more than a cluster share one, a second kernel adds the clusters' sums (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/backward/pointwise_hopper_weight_parameters.h"
#include "fusedsc/common/gpu/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper_products.h"
#include "fusedsc/common/gpu/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// Rows are outputs, in blocks of 64, each a group's; columns are channels. A share takes kDepth positions at a time.
template <class T, int kRowBlocks_, int kColumns_, int kShares_>
class PlainWeightProduct {
 public:
  static constexpr int kRowBlocks = kRowBlocks_, kRows = kRowBlocks * 64, kColumns = kColumns_, kShares = kShares_;
  static constexpr int kDepth = 64, kGroups = kRowBlocks * kShares, kThreads = kGroups * 128 + 32;
  static constexpr int kBox = kColumns % 64 == 0 ? 64 : 32;  ///< columns of a copy

  static constexpr int memory_bytes(int stages) {
    const int tiles = kShares * stages * kStageBytes;
    return 1024 + (tiles > kSumBytes ? tiles : kSumBytes) + 2 * kShares * stages * 8;
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightParameters& p) {
    PlainWeightProduct product(p);
    product.run_all();
  }

 private:
  static constexpr int kBoxRowBytes = kBox * 2, kBoxBytes = kDepth * kBoxRowBytes, kBoxes = kColumns / kBox;
  static constexpr int kXBytes = kBoxes * kBoxBytes, kRowTileBytes = kDepth * 128;
  static constexpr int kStageBytes = kXBytes + kRowBlocks * kRowTileBytes;
  static_assert(kColumns % kBox == 0);

  // Sums go through block memory in fours, as threads have them, of which each share owns some.
  static constexpr int kQuads = kColumns / 8, kCopies = kShares > 1 ? kShares - 1 : 1;
  static constexpr int kSumBytes = kRowBlocks * kQuads * kCopies * 128 * 16;
  using Sums = float[kColumns / 2];

  FUSEDSC_DEVICE explicit PlainWeightProduct(const PointwiseWeightParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    row_block_ = group_ % kRowBlocks;
    share_ = group_ / kRowBlocks;
    int rest = static_cast<int>(block_index());
    rank_ = rest % p.cluster;
    rest /= p.cluster;
    tile_ = rest % (p.tiles.output_tiles * p.tiles.channel_tiles);
    split_ = rest / (p.tiles.output_tiles * p.tiles.channel_tiles);
    first_channel_ = tile_ % p.tiles.channel_tiles * kColumns;
    first_output_ = tile_ / p.tiles.channel_tiles * kRows;
    first_step_ = (split_ * p.cluster + rank_) * kShares;
    stride_ = p.splits * p.cluster * kShares;

    auto* memory = static_cast<unsigned char*>(block_memory());
    stages_ = memory + padding_before_tiles(memory);
    const int tiles = kShares * p.stages * kStageBytes;
    full_ = reinterpret_cast<Barrier*>(stages_ + (tiles > kSumBytes ? tiles : kSumBytes));
    done_ = full_ + kShares * p.stages;
  }

  FUSEDSC_DEVICE int steps_of(int share) const {
    const int left = p_.pixel_tiles - first_step_ - share;
    return left > 0 ? (left + stride_ - 1) / stride_ : 0;
  }

  FUSEDSC_DEVICE void run_all() {
    if (thread_index() == 0) {
      for (int i = 0; i < kShares * p_.stages; ++i) {
        initialise(full_ + i);
        initialise(done_ + i, kRowBlocks * 4);
      }
      publish();
    }
    block_barrier();
    if (group_ < kGroups) return multiply_all();
    if (thread_ != 0) return;
    prefetch(p_.x);
    prefetch(p_.grad_y);
    if (!p_.runs_beside_input) {
      for_steps(p_.stages, [&](int, int position) {
        for_boxes(position, [](int, const TensorMap& map, int x, int y) { prefetch(map, x, y); });
      });
      wait_for_previous_kernel();
    }
    copy_all();
  }

  // ----------------------------------------------------------------------------------- by the thread that starts
  // copies

  /// visit(share, first position) for the first `count` steps of all shares, in the order in which they come.
  template <class Visit>
  FUSEDSC_DEVICE void for_steps(int count, const Visit& visit) const {
    const int most = steps_of(0);
#pragma unroll 1
    for (int step = 0; step < count && step < most; ++step) {
#pragma unroll 1
      for (int share = 0; share < kShares; ++share) {
        const int number = first_step_ + share + step * stride_;
        if (number < p_.pixel_tiles) visit(share, number * kDepth);
      }
    }
  }

  /// visit(its place in a stage, map, column, row) for the tiles of a step.
  template <class Visit>
  FUSEDSC_DEVICE void for_boxes(int position, const Visit& visit) const {
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) visit(i * kBoxBytes, p_.x, first_channel_ + i * kBox, position);
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i)
      visit(kXBytes + i * kRowTileBytes, p_.grad_y, first_output_ + i * 64, position);
  }

  FUSEDSC_DEVICE void copy_all() const {
    StageTurn turn;
    bool is_refill = false;
    for_steps(steps_of(0), [&](int share, int position) {
      const int slot = share * p_.stages + turn.slot;
      Barrier* barrier = full_ + slot;
      if (is_refill) wait(done_ + slot, turn.parity ^ 1);
      expect(barrier, kStageBytes);
      for_boxes(position, [&](int place, const TensorMap& map, int x, int y) {
        start_load(stages_ + slot * kStageBytes + place, map, x, y, barrier);
      });
      if (share < kShares - 1) return;
      turn.next(p_.stages);
      is_refill = is_refill || turn.slot == 0;
    });
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void multiply_all() {
    Sums sums = {};
    StageTurn turn;
    int last_slot = -1;
    const int steps = steps_of(share_), first = share_ * p_.stages;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait(full_ + first + turn.slot, turn.parity);
      multiply_step(sums, stages_ + (first + turn.slot) * kStageBytes);
      if (last_slot >= 0) {
        wait_for_products<1>();
        arrive_as_warp(done_ + first + last_slot);
      }
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence(sums);
    wait_for_previous_kernel();  // which may use the workspace; and whoever waits for this one waits for both
    let_next_kernel_start();
    if constexpr (kShares > 1) put_together(sums);
    if (p_.cluster > 1) return leave_as_cluster(sums);
    for_own(sums, [&](int quad, const float* from) { leave_quad(quad, {from[0], from[1], from[2], from[3]}); });
  }

  FUSEDSC_DEVICE void multiply_step(Sums& sums, const unsigned char* stage) const {
    const std::uint64_t x = describe_blocks<kBoxRowBytes>(stage, kBoxBytes),
                        rows = describe<128>(stage + kXBytes + row_block_ * kRowTileBytes);
    fence(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      multiply<true, true>(sums, rows + k * 128 / 16, x + k * kBoxRowBytes / 16, false, T());
    }
    commit_products();
    fence(sums);
  }

  // -------------------------------------------------------------------------------------- by all groups that multiply

  FUSEDSC_DEVICE static void barrier() { group_barrier<kGroups * 128>(0); }

  /// visit(quad, sums) for those of the group's share that exist.
  template <class Visit>
  FUSEDSC_DEVICE void for_own(const Sums& sums, const Visit& visit) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kShares == share_ && exists(quad)) visit(quad, sums + quad * 4);
    }
  }

  /// The sums of all shares, to the one that owns them.
  FUSEDSC_DEVICE void put_together(Sums& sums) const {
    barrier();  // all are done with the tiles
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kShares == share_ || !exists(quad)) continue;
      const float* from = sums + quad * 4;
      *place_of(quad, (share_ - quad % kShares - 1 + kShares) % kShares) = {from[0], from[1], from[2], from[3]};
    }
    barrier();
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kShares != share_ || !exists(quad)) continue;
#pragma unroll
      for (int number = 0; number < kShares - 1; ++number) {
        const Four other = *place_of(quad, number);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[quad * 4 + i] += other.elements[i];
      }
    }
  }

  /// The cluster's sums, of which each block leaves some.
  FUSEDSC_DEVICE void leave_as_cluster(const Sums& sums) const {
    constexpr int kMostBlocks = 8;
    if constexpr (kShares == 1) barrier();  // all are done with the tiles
    for_own(sums, [&](int quad, const float* from) { *place_of(quad, 0) = {from[0], from[1], from[2], from[3]}; });
    cluster_barrier();
#pragma unroll 1
    for (int quad = rank_ * kShares + share_; quad < kQuads; quad += p_.cluster * kShares) {
      if (!exists(quad)) continue;
      Four parts[kMostBlocks];  // loads that do not wait for each other
#pragma unroll
      for (int rank = 0; rank < kMostBlocks; ++rank) {
        parts[rank] = rank < p_.cluster ? load_of_block(place_of(quad, 0), rank) : Four{};
      }
#pragma unroll
      for (int rank = 1; rank < kMostBlocks; ++rank) add(parts[0], parts[rank]);
      leave_quad(quad, parts[0]);
    }
    cluster_barrier();  // no block's memory goes before all have read it
  }

  FUSEDSC_DEVICE void leave_quad(int quad, const Four& sum) const {
    leave_four(p_.tiles, tile_, split_, (row_block_ * kQuads + quad) * 128 + thread_, sum, T());
  }

  FUSEDSC_DEVICE bool exists(int quad) const {
    return first_channel_ + quad * 8 < p_.tiles.channels &&
           first_output_ + row_block_ * 64 + thread_ / 32 * 16 < p_.tiles.outputs;
  }

  FUSEDSC_DEVICE Four* place_of(int quad, int number) const {
    return reinterpret_cast<Four*>(stages_) + ((row_block_ * kQuads + quad) * kCopies + number) * 128 + thread_;
  }

  const PointwiseWeightParameters& p_;
  int group_, thread_, row_block_, share_, rank_, tile_, split_, first_output_, first_channel_;
  int first_step_, stride_;
  unsigned char* stages_;
  Barrier *full_, *done_;  ///< [share][stage]
};

}  // namespace fusedsc::gpu::hopper
