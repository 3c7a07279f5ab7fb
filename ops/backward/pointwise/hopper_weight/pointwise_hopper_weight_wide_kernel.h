/// Pointwise convolution on Hopper GPUs, weight gradient of tensors without fusion by wide tiles: the
/// warpgroups of a block have 64 outputs each of the same positions and channels, so that a tile is larger than a
/// group's sums, and less comes to shared memory for each product. A warp more brings the positions. Blocks that share
/// a tile of the weight run as a cluster and add their sums through shared memory; if more than a cluster share one, a
/// second kernel adds the clusters' sums (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_parameters.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"

namespace fusedsc::gpu::hopper {

/// Rows are outputs, in blocks of 64, each a group's; columns are channels.
template <class T, int kRowBlocks_, int kColumns_>
class WideWeightProduct {
 public:
  static constexpr int kRowBlocks = kRowBlocks_, kRows = kRowBlocks * 64, kColumns = kColumns_;
  static constexpr int kDepth = 64;  ///< positions that come at a time
  static constexpr int kProductThreads = kRowBlocks * 128, kThreads = kProductThreads + 32;

  static constexpr int memory_bytes(int stages) {
    const int tiles = stages * kStageBytes;
    return 1024 + (tiles > kSumBytes ? tiles : kSumBytes) + 2 * stages * 8;
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightParameters& p) {
    WideWeightProduct product(p);
    product.run_all();
  }

 private:
  /// Columns of a copy.
  static constexpr int kBox = kColumns % 64 == 0 ? 64 : 32, kBoxes = kColumns / kBox;
  static constexpr int kBoxRowBytes = kBox * 2, kBoxBytes = kDepth * kBoxRowBytes, kXBytes = kBoxes * kBoxBytes;
  static constexpr int kRowTileBytes = kDepth * 128, kStageBytes = kXBytes + kRowBlocks * kRowTileBytes;
  static_assert(kColumns % kBox == 0);

  // Sums of a cluster go through shared memory in fours, as threads have them.
  static constexpr int kQuads = kColumns / 8, kSumBytes = kRowBlocks * kQuads * 128 * 16;
  using Sums = float[kColumns / 2];

  FUSEDSC_DEVICE explicit WideWeightProduct(const PointwiseWeightParameters& p) : p_(p) {
    row_block_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    int rest = static_cast<int>(block_index());
    rank_ = rest % p.cluster;
    rest /= p.cluster;
    tile_ = rest % (p.tiles.output_tiles * p.tiles.channel_tiles);
    split_ = rest / (p.tiles.output_tiles * p.tiles.channel_tiles);
    first_channel_ = tile_ % p.tiles.channel_tiles * kColumns;
    first_output_ = tile_ / p.tiles.channel_tiles * kRows;
    first_step_ = split_ * p.cluster + rank_;
    stride_ = p.splits * p.cluster;
    steps_ = first_step_ < p.pixel_tiles ? (p.pixel_tiles - first_step_ + stride_ - 1) / stride_ : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    stages_ = memory + padding_before_tiles(memory);
    const int tiles = p.stages * kStageBytes;
    full_ = reinterpret_cast<Barrier*>(stages_ + (tiles > kSumBytes ? tiles : kSumBytes));
    done_ = full_ + p.stages;
  }

  FUSEDSC_DEVICE void run_all() {
    const bool copies = thread_index() == kProductThreads;
    if (copies) {
      prefetch(p_.x);
      prefetch(p_.grad_y);
      for (int i = 0; i < p_.stages; ++i) {
        initialise(full_ + i);
        initialise(done_ + i, kRowBlocks * 4);
      }
      publish();
      if (!p_.runs_beside_input) wait_for_previous_kernel();
      if (lets_next_start_early()) let_next_kernel_start();
      for (int i = 0; i < least(p_.stages, steps_); ++i) start_step(i, i);
    }
    block_barrier();
    if (row_block_ < kRowBlocks) multiply_all();
    else if (copies) refill_all();
  }

  // ----------------------------------------------------------------------------------- by the thread that starts
  // copies

  FUSEDSC_DEVICE void start_step(int step, int slot) const {
    const int position = (first_step_ + step * stride_) * kDepth;
    unsigned char* stage = stages_ + slot * kStageBytes;
    Barrier* barrier = full_ + slot;
    expect(barrier, kStageBytes);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      start_load(stage + i * kBoxBytes, p_.x, first_channel_ + i * kBox, position, barrier);
    }
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      start_load(stage + kXBytes + i * kRowTileBytes, p_.grad_y, first_output_ + i * 64, position, barrier);
    }
  }

  FUSEDSC_DEVICE void refill_all() const {
    StageTurn turn;
#pragma unroll 1
    for (int step = p_.stages; step < steps_; ++step) {
      wait(done_ + turn.slot, turn.parity);
      start_step(step, turn.slot);
      turn.next(p_.stages);
    }
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void multiply_all() const {
    Sums sums = {};
    StageTurn turn;
    int last_slot = -1;
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      wait(full_ + turn.slot, turn.parity);
      multiply_step(sums, stages_ + turn.slot * kStageBytes);
      if (last_slot >= 0) {
        wait_for_products<1>();
        arrive_as_warp(done_ + last_slot);
      }
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence(sums);
    wait_for_previous_kernel();  // which may use the workspace; and whoever waits for this one waits for both
    if (!lets_next_start_early()) let_next_kernel_start();
    if (p_.cluster > 1) return leave_as_cluster(sums);
    if (p_.stores_runs) return store_runs(sums);
    for_quads(sums, [&](int quad, const Four& sum) { leave_quad(quad, sum); });
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

  /// visit(quad, sums) for those that exist.
  template <class Visit>
  FUSEDSC_DEVICE void for_quads(const Sums& sums, const Visit& visit) const {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const float* from = sums + quad * 4;
      if (exists(quad)) visit(quad, Four{from[0], from[1], from[2], from[3]});
    }
  }

  /// The cluster's sums, of which each block leaves some.
  FUSEDSC_DEVICE void leave_as_cluster(const Sums& sums) const {
    constexpr int kMostBlocks = 8;
    group_barrier<kProductThreads>(0);  // all are done with the tiles
    for_quads(sums, [&](int quad, const Four& sum) { *place_of(quad) = sum; });
    cluster_barrier();
#pragma unroll 1
    for (int quad = rank_; quad < kQuads; quad += p_.cluster) {
      if (!exists(quad)) continue;
      Four parts[kMostBlocks];  // loads that do not wait for each other
#pragma unroll
      for (int rank = 0; rank < kMostBlocks; ++rank) {
        parts[rank] = rank < p_.cluster ? load_of_block(place_of(quad), rank) : Four{};
      }
#pragma unroll
      for (int rank = 1; rank < kMostBlocks; ++rank) add(parts[0], parts[rank]);
      leave_quad(quad, parts[0]);
    }
    cluster_barrier();  // no block's memory goes before all have read it
  }

  /// To the weight, of which four neighbouring lanes have two channels each, by 16 bytes: a lane takes all channels of
  /// one quad of four from them. By words, memory is written in halves of sectors, which took a microsecond.
  FUSEDSC_DEVICE void store_runs(const Sums& sums) const {
    constexpr int kLanes = 4;
    const int lane = thread_ % kLanes;
    const int output = first_output_ + row_block_ * 64 + thread_ / 32 * 16 + thread_ % 32 / kLanes;
#pragma unroll
    for (int first = 0; first < kQuads; first += kLanes) {
      const int channel = first_channel_ + (first + lane) * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Aligned<std::uint32_t, kLanes> run;
#pragma unroll
        for (int i = 0; i < kLanes; ++i) {
          const float* pair = sums + (first + i) * 4 + half * 2;
          run.elements[i] = to_bits(pair[0], pair[1], T());
        }
        exchange<1>(run.elements[0], run.elements[1], lane);
        exchange<1>(run.elements[2], run.elements[3], lane);
        exchange<2>(run.elements[0], run.elements[2], lane);
        exchange<2>(run.elements[1], run.elements[3], lane);
        const int row = output + half * 8;
        if (row >= p_.tiles.outputs || channel >= p_.tiles.channels) continue;
        T* to = static_cast<T*>(p_.tiles.weight) + row * p_.tiles.weight_row + channel;
        *reinterpret_cast<Aligned<std::uint32_t, kLanes>*>(to) = run;
      }
    }
  }

  /// Lanes with that bit give their first word for the other lane's second.
  template <int kBit>
  FUSEDSC_DEVICE static void exchange(std::uint32_t& first, std::uint32_t& second, int lane) {
    const bool has_bit = (lane & kBit) != 0;
    const std::uint32_t taken = shuffle_xor(has_bit ? first : second, kBit);
    if (has_bit) first = taken;
    else second = taken;
  }

  /// A second kernel would only take this one's place; another call's finds multiprocessors without a tile. Not before
  /// the previous kernel has ended: the next one may read what that has written without waiting.
  FUSEDSC_DEVICE bool lets_next_start_early() const {
    return p_.cluster == 1 && p_.tiles.partials == nullptr && !p_.runs_beside_input;
  }

  FUSEDSC_DEVICE void leave_quad(int quad, const Four& sum) const {
    leave_four(p_.tiles, tile_, split_, (row_block_ * kQuads + quad) * 128 + thread_, sum, T());
  }

  FUSEDSC_DEVICE bool exists(int quad) const {
    return first_channel_ + quad * 8 < p_.tiles.channels &&
           first_output_ + row_block_ * 64 + thread_ / 32 * 16 < p_.tiles.outputs;
  }

  FUSEDSC_DEVICE Four* place_of(int quad) const {
    return reinterpret_cast<Four*>(stages_) + (row_block_ * kQuads + quad) * 128 + thread_;
  }

  const PointwiseWeightParameters& p_;
  int row_block_, thread_, rank_, tile_, split_, first_output_, first_channel_;
  int first_step_, stride_, steps_;
  unsigned char* stages_;
  Barrier *full_, *done_;  ///< of each stage: its copies have come; all groups are done with it
};

}  // namespace fusedsc::gpu::hopper
