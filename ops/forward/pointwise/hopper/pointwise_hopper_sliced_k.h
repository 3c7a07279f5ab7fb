/// Pointwise products on Hopper GPUs with many values of k and few positions: a block has one tile of outputs, on which
/// all its warpgroups work. Some take further positions, some another share of k, and these put their sums
/// together in shared memory; each then finishes its own channels. Where few blocks have much of k, those of a cluster
/// share it, and each of them finishes some channels.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_shares.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_smem_transpose.h"

namespace fusedsc::gpu::hopper {

/// kRowTiles: tiles of 64 positions; kKSlices: groups that share the k of one; kInputGradient: as of blocks that keep
/// their weight (pointwise_hopper.h).
template <class T, int kRowTiles_, int kChannels_, int kKSlices_, bool kPrologue, bool kInputGradient,
          EpilogueKind kKind>
class PointwiseSlicedKProduct {
 public:
  static constexpr int kRowTiles = kRowTiles_, kChannels = kChannels_, kKSlices = kKSlices_;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kTileDepth = 128 / kSize;
  static constexpr int kGroups = kRowTiles * kKSlices, kProductThreads = kGroups * kGroupThreads;
  /// Warps of their own that start the copies, one for each share of k: where no second block fits a multiprocessor, so
  /// that they cost nothing. A group's first thread would start them between two steps, while the others wait for it.
  static constexpr int kCopyWarps = kPrologue && !kInputGradient && kChannels >= 160 ? kKSlices : 0;
  static constexpr int kThreads = kProductThreads + 32 * kCopyWarps;
  /// Columns of a tile of outputs or of a weight with its channels innermost, and the bytes of its rows.
  static constexpr int kColumns = columns_of_tile<T>(kChannels), kRowBytes = kColumns * kSize;
  static constexpr int kBlocks = kChannels / kColumns;
  static constexpr int kOwn = kChannels / kKSlices;  ///< channels that a group finishes
  static_assert(kChannels % kColumns == 0);

  /// `stages`: of each share of k.
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(const PointwiseMemoryUse& use, int stages) {
    const int tiles = 1 + (use.has_x ? 1 : 0) + (use.has_added ? 1 : 0);
    const int steps = (use.depth + kKSlices * kTileDepth - 1) / (kKSlices * kTileDepth);
    return 1024 +
           kKSlices * (stages * kRowTiles * kTileBytes * (use.has_other ? 2 : 1) +
                       (use.lays_out ? steps : stages) * kWeightBytes) +
           kRowTiles * tiles * kOutBytes + barrier_bytes(stages) +
           4 * (kKSlices * kPartFloats + (kPrologue ? coefficients(use.depth) : 0));
  }

  FUSEDSC_DEVICE static void run(const PointwiseParameters& p) {
    PointwiseSlicedKProduct product(p);
    product.run_all();
  }

 private:
  using Shares = PointwiseShares<kChannels, kKSlices>;
  using Sums = typename Shares::Sums;
  using OwnSums = typename Shares::OwnSums;
  static constexpr bool kWeightDepthFirst = kInputGradient && kSize == 2;
  using Prologue = PointwisePrologue<T, kInputGradient>;  ///< of gradients: with another tensor
  using Part = Epilogue<T, kOwn, kRowTiles * kGroupThreads, kKind>;
  static constexpr int kPiece = Prologue::kPiece, kPieces = kTileDepth / kPiece, kDepthBytes = 128;
  static constexpr int kTileBytes = kTileRows * kDepthBytes, kWeightBytes = kChannels * kDepthBytes;
  static constexpr int kOutBytes = kTileRows * kChannels * kSize, kBlockBytes = kTileRows * kRowBytes;
  static constexpr int kPartFloats = Part::memory_floats(kRowTiles * 4);
  static constexpr bool kSums = Part::kStatistics || Part::kGradient;
  static constexpr bool kPlain = !kPrologue && kKind == EpilogueKind::plain;
  static constexpr bool kTransposes = kCanTranspose<T, kChannels, kTileDepth, kPlain>;
  // As of blocks that keep their weight.
  static constexpr bool kThroughRegisters = kPrologue || kSize == 4;
  static constexpr bool kMayRoundWeight = kSize == 4 && !kInputGradient;

 public:
  static constexpr int kLeastStages = Shares::kBytes > 2 * kTileBytes ? (Shares::kBytes + kTileBytes - 1) / kTileBytes
                                                                      : 2;

 private:
  /// Steps whose copies are started before the barrier that all wait at: to start them all takes a microsecond, in
  /// which a prologue's coefficients can be read. Without one there is nothing else to do.
  static constexpr int kEarly = kPrologue ? 2 : 0x7fffffff;
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return (2 * kKSlices * stages * 8 + 8 + 15) / 16 * 16;
  }
  FUSEDSC_HOST_DEVICE static constexpr int coefficients(int depth) {
    return Prologue::kVectors * ((depth + kTileDepth - 1) / kTileDepth * kTileDepth);
  }

  FUSEDSC_DEVICE explicit PointwiseSlicedKProduct(const PointwiseParameters& p) : p_(p) {
    group_ = uniform(thread_index() / kGroupThreads);
    thread_ = thread_index() % kGroupThreads;
    copies_ = kCopyWarps > 0 && group_ == kGroups;
    if (copies_) {  // as the first group of a share
      group_ = uniform(thread_ / 32);
      thread_ %= 32;
    }
    row_tile_ = group_ / kKSlices;
    k_slice_ = group_ % kKSlices;
    const int cluster = kPlain ? p.cluster : 1, block = static_cast<int>(block_index()) / cluster;
    rank_ = static_cast<int>(block_index()) % cluster;
    split_ = block / p.channel_tiles;
    first_channel_ = block % p.channel_tiles * kChannels;
    pixel_ = (split_ * kRowTiles + row_tile_) * kTileRows;
    const int steps = (p.depth + kTileDepth - 1) / kTileDepth;
    share_ = rank_ * kKSlices + k_slice_;
    shares_ = cluster * kKSlices;
    steps_ = share_ < steps ? (steps - share_ + shares_ - 1) / shares_ : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    tile_bytes_ = kPrologue && p.has_other ? 2 * kTileBytes : kTileBytes;
    ring_ = memory;
    tiles_ = memory + group_ * p.stages * tile_bytes_;
    memory += kRowTiles * kKSlices * p.stages * tile_bytes_;
    const int weights = lays_out() ? (steps + kKSlices - 1) / kKSlices : p.stages;
    weights_ = memory + k_slice_ * weights * kWeightBytes;
    memory += kKSlices * weights * kWeightBytes;
    has_x_ = Part::kTakesX && p.epilogue.has_x;
    has_added_ = Part::kTakesAdded && p.epilogue.has_added;
    out_ = memory + row_tile_ * kOutBytes;
    memory += kRowTiles * kOutBytes;
    x_ = memory + row_tile_ * kOutBytes;
    memory += has_x_ ? kRowTiles * kOutBytes : 0;
    added_ = memory + row_tile_ * kOutBytes;
    memory += has_added_ ? kRowTiles * kOutBytes : 0;
    inputs_ = reinterpret_cast<Barrier*>(memory);
    full_ = inputs_ + 1 + k_slice_ * 2 * p.stages;
    empty_ = full_ + p.stages;
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE void run_all() {
    const bool is_leader = thread_ == 0 && row_tile_ == 0 && copies_ == (kCopyWarps > 0);  // of a share of k
    if (is_leader) {
      if (k_slice_ == 0) {
        prefetch_maps(p_);
        initialise(inputs_, kRowTiles);
      }
      for (int i = 0; i < p_.stages; ++i) {
        initialise(full_ + i);
        initialise(empty_ + i, kRowTiles * 4);
      }
      publish();
      start_first(0, kEarly, p_.has_old_activations(), p_.has_old_weight());
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader) start_first(0, kEarly, !p_.has_old_activations(), !p_.has_old_weight());
    if (copies_) return copy_rest();
    Part part(p_.epilogue, vectors_ + k_slice_ * kPartFloats, first_channel_ + k_slice_ * kOwn, own_channels(),
              row_tile_ * kGroupThreads + thread_);
    const int steps = (p_.depth + kTileDepth - 1) / kTileDepth;
    const Prologue prologue(p_, vectors_ + kKSlices * kPartFloats, steps * kTileDepth);
    if constexpr (kPrologue) prologue.read(thread_index(), kProductThreads);
    if (lays_out()) lay_out();
    block_barrier();
    if (is_leader) start_first(kEarly, p_.stages, true, true);
    if (thread_ == 0 && k_slice_ == 0) start_inputs();
    OwnSums own;
    multiply_all(prologue, own);
    if constexpr (kPlain) {
      if (p_.cluster > 1) {
        block_barrier();  // all groups are done with shared memory
        add_up_cluster(own, ring_, kThreads, rank_, p_.cluster,
                       [&](int quad, const Aligned<float, 4>& sums) { store_rows(quad, sums); });
        return;
      }
    }
    if (has_x_ || has_added_) wait(inputs_, 0);
    if constexpr (!Part::kHasWork) store_sums(own);
    else if (pixel_ + kTileRows <= p_.pixels) store_tile<true>(own, part);
    else store_tile<false>(own, part);
    publish();
    row_tile_barrier();
    if (thread_ == 0 && k_slice_ == 0 && pixel_ < p_.pixels) {
      for (int block = 0; block < kBlocks; ++block) {
        start_store(p_.output, first_channel_ + block * kColumns, pixel_, out_ + block * kBlockBytes);
      }
      commit_stores();
    }
    if constexpr (kSums) {
      float* memory = reinterpret_cast<float*>(ring_) + k_slice_ * Part::merging_floats();
      block_barrier();  // all are done with the sums there
      part.leave(memory);
      block_barrier();
      part.merge(memory, split_, first_channel_ + k_slice_ * kOwn, own_channels(), p_.channels);
    }
    if (thread_ == 0 && k_slice_ == 0) wait_for_stores();
  }

  // ----------------------------------------------------------------------------------------------------- by one thread

  /// Of the steps from `begin` to `end` for which there are stages. A step's activations come first.
  FUSEDSC_DEVICE void start_first(int begin, int end, bool with_activations, bool with_weight) const {
    for (int i = begin; i < least(end, least(p_.stages, steps_)); ++i) {
      if (with_activations) start_positions(i, i);
      if (with_weight) start_weight(i, i);
    }
  }

  /// By all threads of a warp of which one copies: whatever else all of the block do.
  FUSEDSC_DEVICE void copy_rest() const {
    block_barrier();
    if (thread_ == 0) start_first(kEarly, p_.stages, true, true);
    StageTurn turn;
    for (int step = p_.stages; thread_ == 0 && step < steps_; ++step) {
      wait(empty_ + turn.slot, turn.parity);
      start_step(step, turn.slot);
      turn.next(p_.stages);
    }
    warp_barrier();
    if constexpr (kSums) {
      block_barrier();
      block_barrier();
    }
  }

  /// Number `step` of the share's, to `slot`.
  FUSEDSC_DEVICE void start_step(int step, int slot) const {
    start_positions(step, slot);
    start_weight(step, slot);
  }

  FUSEDSC_DEVICE void start_weight(int step, int slot) const {
    if (lays_out()) return;  // by threads, all of it before the first step
    const int k = (share_ + step * shares_) * kTileDepth;
    Barrier* barrier = full_ + slot;
    unsigned char* weight = weights_ + slot * kWeightBytes;
    if constexpr (kWeightDepthFirst) {
      for (int block = 0; block < kBlocks; ++block) {
        start_load(weight + block * kTileDepth * kRowBytes, p_.weight, first_channel_ + block * kColumns, k, barrier);
      }
    } else if (kTransposes && p_.smem_transposes_weight) {
      start_transposed<kChannels>(weight, p_.weight, first_channel_, k, barrier);
    } else {
      start_load(weight, p_.weight, k, first_channel_, barrier);
    }
  }

  /// Which says how many bytes there will be with the weight.
  FUSEDSC_DEVICE void start_positions(int step, int slot) const {
    const int k = (share_ + step * shares_) * kTileDepth;
    Barrier* barrier = full_ + slot;
    expect(barrier, kRowTiles * tile_bytes_ + (lays_out() ? 0 : kWeightBytes));
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      unsigned char* tile = tiles_ + (i * kKSlices * p_.stages + slot) * tile_bytes_;
      start_load(tile, p_.activations, k, pixel_ + i * kTileRows, barrier);
      if constexpr (kPrologue) {
        if (p_.has_other) start_load(tile + kTileBytes, p_.other, k, pixel_ + i * kTileRows, barrier);
      }
    }
  }

  FUSEDSC_DEVICE void start_inputs() const {
    if (!has_x_ && !has_added_) return;
    expect(inputs_, (has_x_ && has_added_ ? 2 : 1) * kOutBytes);
    for (int block = 0; block < kBlocks; ++block) {
      const int channel = first_channel_ + block * kColumns;
      if (has_x_) start_load(x_ + block * kBlockBytes, p_.x, channel, pixel_, inputs_);
      if (has_added_) start_load(added_ + block * kBlockBytes, p_.added, channel, pixel_, inputs_);
    }
  }

  // ------------------------------------------------------------------------------------- by all threads of a share of
  // k

  /// There is room for all of the weight then.
  FUSEDSC_DEVICE bool lays_out() const { return p_.source.data != nullptr; }

  FUSEDSC_DEVICE void lay_out() const {
    const ThreadCopiedSteps steps{weights_, kWeightBytes, first_channel_, k_slice_ * kTileDepth, kKSlices * kTileDepth,
                                  steps_};
    lay_out_steps<T, kWeightDepthFirst, kChannels, kTileDepth, kColumns>(
        p_.source, steps, row_tile_ * kGroupThreads + thread_, kRowTiles * kGroupThreads);
    publish();
  }

  /// Where a group is in its share of k.
  struct Steps {
    int step = 0, last_slot = -1;
    StageTurn turn;

    FUSEDSC_DEVICE void next(int stages) {
      ++step;
      last_slot = turn.slot;
      turn.next(stages);
    }
  };

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void row_tile_barrier() const { group_barrier<kKSlices * kGroupThreads>(row_tile_); }

  FUSEDSC_DEVICE int own_channels() const {
    const int rest = p_.channels - first_channel_ - k_slice_ * kOwn;
    return rest < 0 ? 0 : least(rest, kOwn);
  }

  /// own = the group's own channels of the product.
  FUSEDSC_DEVICE void multiply_all(const Prologue& prologue, OwnSums& own) const {
    Sums sums = {};
    if constexpr (kPrologue) {
      prologue.with_change([&](const auto& change) { multiply_changed(sums, change); });
    } else if constexpr (kThroughRegisters) {
      multiply_rounded(sums);
    } else {
      multiply_unchanged(sums);
    }
    wait_for_products<0>();
    fence(sums);
    put_together(sums, own);
  }

  FUSEDSC_DEVICE void multiply_unchanged(Sums& sums) const {
#pragma unroll 1
    for (Steps steps; steps.step < steps_; steps.next(p_.stages)) {
      wait(full_ + steps.turn.slot, steps.turn.parity);
      const std::uint64_t rows = describe<kDepthBytes>(tiles_ + steps.turn.slot * tile_bytes_);
      multiply_step(sums, steps, [&](int k) { return rows + k * kSize / 16; });
      refill_last(steps);
    }
  }

  /// Of floats, which are rounded in registers. What weights need is done beside the products of the step before; other
  /// registers for the activations, too, would cost a second block beside this one, and copies take longer than both.
  FUSEDSC_DEVICE void multiply_rounded(Sums& sums) const {
    const bool smem_transposes = kTransposes && p_.smem_transposes_weight,
               smem_transposes_at_once = smem_transposes && steps_ <= p_.stages;
    if constexpr (kTransposes) {
      if (smem_transposes_at_once) {
        transpose_tiles_together<kChannels, kRowTiles, kKSlices>(weights_, steps_, row_tile_, k_slice_,
                                                                 [&](int step) { wait(full_ + step, 0); });
      }
    }
    const auto round = [](auto& words, const auto& /*others*/, int /*k*/) { round_pieces<T>(words); };
#pragma unroll 1
    for (Steps steps; steps.step < steps_; steps.next(p_.stages)) {
      wait(full_ + steps.turn.slot, steps.turn.parity);
      if constexpr (kTransposes) {
        if (smem_transposes && !smem_transposes_at_once) {
          transpose_tiles_together<kChannels, kRowTiles, kKSlices>(weights_ + steps.turn.slot * kWeightBytes, 1,
                                                                   row_tile_, k_slice_);
        }
      }
      round_weight(steps);
      std::uint32_t rows[kPieces][4];
      wait_for_products<0>();  // which may still read these registers
      read_changed(rows, round, steps);
      multiply_step(sums, steps, [&](int k) -> const std::uint32_t(&)[4] { return rows[k / kPiece]; });
      refill_last(steps);  // beside the products: the thread that copies waits for the other warps
    }
  }

  /// With the prologue, through registers: two sets of them, so that one is changed while products read the other.
  template <class Change>
  FUSEDSC_DEVICE void multiply_changed(Sums& sums, const Change& change) const {
    std::uint32_t rows[2][kPieces][4];
    Steps steps;
#pragma unroll 1
    while (steps.step < steps_) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (i == 1 && steps.step == steps_) break;
        wait(full_ + steps.turn.slot, steps.turn.parity);
        round_weight(steps);
        read_changed(rows[i], change, steps);
        multiply_step(sums, steps, [&](int k) -> const std::uint32_t(&)[4] { return rows[i][k / kPiece]; });
        refill_last(steps);
        steps.next(p_.stages);
      }
    }
  }

  /// Of a step, by the groups that share it.
  FUSEDSC_DEVICE void round_weight(const Steps& steps) const {
    if constexpr (kMayRoundWeight) {
      if (!p_.rounds_weight) return;
      round_tile_together<kWeightBytes, kRowTiles, kKSlices>(weights_ + steps.turn.slot * kWeightBytes, row_tile_,
                                                             k_slice_);
    }
  }

  /// The slot of the step before the present one, whose products are done then.
  FUSEDSC_DEVICE void refill_last(const Steps& steps) const {
    const int next = steps.step - 1 + p_.stages;
    if (steps.step == 0 || (!kThroughRegisters && next >= steps_)) return;
    wait_for_products<1>();  // which may read registers, too, that are wanted again
    if (next >= steps_) return;
    warp_barrier();
    if (thread_ % 32 == 0) arrive(empty_ + steps.last_slot);
    if (kCopyWarps > 0 || thread_ != 0 || row_tile_ != 0) return;
    wait(empty_ + steps.last_slot, steps.turn.parity ^ (steps.turn.slot == 0 ? 1 : 0));
    start_step(next, steps.last_slot);
  }

  FUSEDSC_DEVICE std::uint64_t describe_weight(const unsigned char* weight, int k) const {
    if constexpr (!kWeightDepthFirst) return describe<kDepthBytes>(weight) + k * kSize / 16;
    else return describe_blocks<kRowBytes>(weight + k * kRowBytes, kTileDepth * kRowBytes);
  }

  /// sums += rows_of(k) times the weight, for each piece of a step's values of k. Beyond the end of k both are zeros.
  template <class RowsOf>
  FUSEDSC_DEVICE void multiply_step(Sums& sums, const Steps& steps, const RowsOf& rows_of) const {
    const unsigned char* weight = weights_ + (lays_out() ? steps.step : steps.turn.slot) * kWeightBytes;
    fence(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileDepth; k += kPiece) {
      multiply<kWeightDepthFirst>(sums, rows_of(k), describe_weight(weight, k), false, T());
    }
    commit_products();
    fence(sums);
  }

  /// rows = what becomes of a step's activations.
  template <class Change>
  FUSEDSC_DEVICE void read_changed(std::uint32_t (&rows)[kPieces][4], const Change& change, const Steps& steps) const {
    const unsigned char* tile = tiles_ + steps.turn.slot * tile_bytes_;
    auto thread = static_cast<std::uint32_t>(thread_);
    if constexpr (!kPrologue) hide_origin(thread);  // places are worked out here: registers wait for them otherwise
    const int lane = static_cast<int>(thread % 32), row = static_cast<int>(thread / 32 * 16) + lane % 16;
    std::uint32_t others[kPieces][4] = {};
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int place = place_of_run<kDepthBytes>(row, i * 2 + lane / 16);
      load_matrices(tile + place, rows[i]);
      if constexpr (kPrologue && kInputGradient) load_matrices(tile + kTileBytes + place, others[i]);
    }
    change(rows, others, (share_ + steps.step * shares_) * kTileDepth);
  }

  /// own = the sums of all shares of k, of the group's own channels. They pass through where its activations were.
  FUSEDSC_DEVICE void put_together(const Sums& sums, OwnSums& own) const {
    if constexpr (kKSlices > 1) group_barrier(kRowTiles + group_);  // its warps are done with these
    const Shares shares(tiles_, p_.stages * tile_bytes_, k_slice_, thread_);
    shares.put_together(sums, own, [&] { row_tile_barrier(); });
  }

  /// To shared memory, as they are.
  FUSEDSC_DEVICE void store_sums(OwnSums& sums) const {
    const PairsOfTile<T, kRowBytes> pairs(thread_);
#pragma unroll
    for (int quad = 0; quad < Shares::kOwnQuads; quad += 2) {
      const int channel = k_slice_ * kOwn + quad * 8;
      pairs.store(out_ + channel / kColumns * kBlockBytes, channel % kColumns,
                  *reinterpret_cast<float(*)[8]>(sums + quad * 4));
    }
  }

  /// Likewise, through the epilogue. kAll: all rows of the tile exist.
  template <bool kAll>
  FUSEDSC_DEVICE void store_tile(OwnSums& sums, Part& part) const {
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
    const PairsOfTile<T, kRowBytes> pairs(thread_);
    const bool exists[2] = {kAll || pixel_ + row < p_.pixels, kAll || pixel_ + row + 8 < p_.pixels};
    if constexpr (Part::kStatistics) {
#pragma unroll
      for (int i = 0; i < Shares::kOwnQuads; ++i) part.set_pivot(i * 8 + lane % 4 * 2, sums[i * 4], sums[i * 4 + 1]);
      warp_barrier();
      part.count(exists[0]);
      part.count(exists[1]);
    }
#pragma unroll
    for (int quad = 0; quad < Shares::kOwnQuads; quad += 2) {
      // Two positions of the pair in 8 channels, then of that in the next 8.
      float(&values)[8] = *reinterpret_cast<float(*)[8]>(sums + quad * 4);
      const int channel = k_slice_ * kOwn + quad * 8, block = channel / kColumns * kBlockBytes;
      Pair<T> x[4] = {}, added[4] = {};
      if (has_x_) pairs.read(x_ + block, channel % kColumns, x);
      if (has_added_) pairs.read(added_ + block, channel % kColumns, added);
      part.take(quad * 8, exists, values, x, added);
      pairs.store(out_ + block, channel % kColumns, values);
    }
  }

  /// What a block of a cluster takes, two channels of two positions, to memory.
  FUSEDSC_DEVICE void store_rows(int quad, const Aligned<float, 4>& sums) const {
    const int lane = thread_ % 32, pixel = pixel_ + thread_ / 32 * 16 + lane / 4;
    const int channel = first_channel_ + k_slice_ * kOwn + quad * 8 + lane % 4 * 2;
    if (channel >= p_.channels) return;
    T* to = static_cast<T*>(p_.output_rows) + std::int64_t{pixel} * p_.channels + channel;
    if (pixel < p_.pixels) store<2>(sums.elements, to);
    if (pixel + 8 < p_.pixels) store<2>(sums.elements + 2, to + std::int64_t{8} * p_.channels);
  }

  const PointwiseParameters& p_;
  int rank_, share_, shares_;  ///< of the cluster's blocks; of k, and how many there are in the cluster
  int group_, thread_, row_tile_, k_slice_, split_, first_channel_, pixel_, steps_, tile_bytes_;
  bool copies_, has_x_, has_added_;
  unsigned char *ring_, *tiles_, *weights_, *out_, *x_, *added_;
  Barrier *inputs_, *full_, *empty_;
  float* vectors_;
};

}  // namespace fusedsc::gpu::hopper
