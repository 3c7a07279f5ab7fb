/// Pointwise products of contiguous tensors on Hopper GPUs with many values of k and few positions: a block has one
/// tile of outputs, on which all its warpgroups work. Some take further positions, some another share of k,
/// and these put their sums together in shared memory; each then finishes its own channels. Where few blocks have much
/// of k, those of a cluster share it, and each of them finishes some channels.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_shares.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_smem_transpose.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_tile.h"

namespace fusedsc::gpu::hopper {

/// Positions: PlanesBox or PlanesRun. kRowTiles: tiles of 64 positions; kKSlices: groups that share the k of one.
template <class T, class Positions, int kRowTiles_, int kChannels_, int kKSlices_, bool kPrologue, bool kInputGradient,
          EpilogueKind kKind>
class PlanesSlicedKProduct {
 public:
  static constexpr int kRowTiles = kRowTiles_, kChannels = kChannels_, kKSlices = kKSlices_;
  static constexpr int kThreads = kRowTiles * kKSlices * kGroupThreads;
  static constexpr int kTileDepth = 128 / static_cast<int>(sizeof(T));
  static constexpr int kOwn = kChannels / kKSlices;  ///< channels that a group finishes

  /// `stages`: of each share of k.
  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(const PointwiseMemoryUse& use, const PlanesTiling& tiling,
                                                        int stages) {
    const int inputs = (use.has_x ? 1 : 0) + (use.has_added ? 1 : 0), units = kRowTiles / sharing(tiling);
    return 1024 +
           kKSlices * stages * (units * (use.has_other ? 2 : 1) * Positions::bytes(kTileDepth, tiling) + kWeightBytes) +
           units * (1 + inputs) * Positions::bytes(kChannels, tiling) + barrier_bytes(stages) +
           4 * (kKSlices * kPartFloats + (kPrologue ? coefficients(use.depth) : 0));
  }

  FUSEDSC_DEVICE static void run(const PlanesParameters& p) {
    PlanesSlicedKProduct product(p);
    product.run_all();
  }

 private:
  using Shares = PointwiseShares<kChannels, kKSlices>;
  using Sums = typename Shares::Sums;
  using OwnSums = typename Shares::OwnSums;
  using Prologue = PointwisePrologue<T, kInputGradient>;  ///< of gradients: with another tensor
  using Part = Epilogue<T, kOwn, kRowTiles * kGroupThreads, kKind>;
  static constexpr int kSize = Positions::kSize, kPiece = Prologue::kPiece, kPieces = kTileDepth / kPiece;
  static constexpr bool kWeightDepthFirst = kInputGradient && kSize == 2;
  // Of a weight with its channels innermost: columns that lie together, and blocks of them.
  static constexpr int kColumns = kChannels > 32 ? 64 : 32, kBlocks = (kChannels + kColumns - 1) / kColumns;
  static constexpr int kWeightBytes = (kWeightDepthFirst ? kBlocks * kColumns : kChannels) * 128;
  static constexpr int kPartFloats = Part::memory_floats(kRowTiles * 4);
  static constexpr bool kSums = Part::kStatistics || Part::kGradient;

 public:
  /// Not of whole images and 96 channels, for which that would take the registers of a second block.
  static constexpr bool kTransposes = kCanTranspose < T, kChannels, kTileDepth,
                        !kPrologue && kKind == EpilogueKind::plain > &&!(Positions::kWholeImages && kChannels == 96);
  static constexpr bool kMayRoundWeight = sizeof(T) == 4 && !kInputGradient;  ///< whose weight has passed a kernel
  /// Whether tiles of a block can be cut so: groups that share k do not share tiles with others.
  static constexpr bool takes(const PlanesTiling& tiling) {
    return kRowTiles % sharing(tiling) == 0 && (kKSlices == 1 || sharing(tiling) == 1);
  }
  static constexpr int least_stages(const PlanesTiling& tiling) {
    const int tile = Positions::bytes(kTileDepth, tiling);
    return Shares::kBytes > 2 * tile ? (Shares::kBytes - 1) / tile + 1 : 2;
  }

 private:
  /// Groups that share a tile of inputs, and of outputs.
  FUSEDSC_HOST_DEVICE static constexpr int sharing(const PlanesTiling& tiling) {
    return Positions::kWholeImages ? tiling.parts : 1;
  }
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return (2 * kKSlices * stages * 8 + 8 + 15) / 16 * 16;
  }
  FUSEDSC_HOST_DEVICE static constexpr int coefficients(int depth) {
    return Prologue::kVectors * ((depth + kTileDepth - 1) / kTileDepth * kTileDepth);
  }

  FUSEDSC_DEVICE explicit PlanesSlicedKProduct(const PlanesParameters& p)
      : p_(p),
        tile_(p.tiling, thread_index() % kGroupThreads,
              thread_index() / kGroupThreads / kKSlices % (Positions::kWholeImages ? p.tiling.parts : 1)) {
    group_ = uniform(thread_index() / kGroupThreads);
    thread_ = thread_index() % kGroupThreads;
    row_tile_ = group_ / kKSlices;
    k_slice_ = group_ % kKSlices;
    const int block = static_cast<int>(block_index()) / p.cluster;
    rank_ = static_cast<int>(block_index()) % p.cluster;
    split_ = block / p.channel_tiles;
    first_channel_ = block % p.channel_tiles * kChannels;
    image_ = image_of(row_tile_, position_);
    const int steps = (p.depth + kTileDepth - 1) / kTileDepth;
    share_ = rank_ * kKSlices + k_slice_;
    shares_ = p.cluster * kKSlices;
    steps_ = share_ < steps ? (steps - share_ + shares_ - 1) / shares_ : 0;
    sharing_ = sharing(p.tiling);
    units_ = kRowTiles / sharing_;
    const int unit = row_tile_ / sharing_;
    is_first_ = thread_ == 0 && k_slice_ == 0 && row_tile_ % sharing_ == 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    in_bytes_ = Positions::bytes(kTileDepth, p.tiling);
    tile_bytes_ = kPrologue && p.has_other ? 2 * in_bytes_ : in_bytes_;
    // The weight comes first, which must lie at multiples of 1024 bytes.
    weights_ = memory + k_slice_ * p.stages * kWeightBytes;
    memory += kKSlices * p.stages * kWeightBytes;
    ring_ = memory;
    tiles_ = memory + (unit * kKSlices + k_slice_) * p.stages * tile_bytes_;
    memory += units_ * kKSlices * p.stages * tile_bytes_;
    has_x_ = Part::kTakesX && p.epilogue.has_x;
    has_added_ = Part::kTakesAdded && p.epilogue.has_added;
    const int out_bytes = Positions::bytes(kChannels, p.tiling);
    out_ = memory + unit * out_bytes;
    memory += units_ * out_bytes;
    x_ = memory + unit * out_bytes;
    memory += has_x_ ? units_ * out_bytes : 0;
    added_ = memory + unit * out_bytes;
    memory += has_added_ ? units_ * out_bytes : 0;
    inputs_ = reinterpret_cast<Barrier*>(memory);
    full_ = inputs_ + 1 + k_slice_ * 2 * p.stages;
    empty_ = full_ + p.stages;
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  /// Where a tile of the block begins. Beyond the last image there is nothing.
  FUSEDSC_DEVICE int image_of(int row_tile, int& position) const {
    auto rest = static_cast<std::uint32_t>(split_ * kRowTiles + row_tile);
    const auto image = static_cast<int>(p_.parts.divide(rest));
    position = static_cast<int>(rest) * p_.tiling.part_positions;
    return image;
  }
  FUSEDSC_DEVICE bool exists(int row_tile) const { return split_ * kRowTiles + row_tile < p_.pixel_tiles; }

  FUSEDSC_DEVICE void run_all() {
    const bool is_leader = thread_ == 0 && row_tile_ == 0;  // of a share of k
    if (is_leader) {
      if (k_slice_ == 0) {
        prefetch_maps(p_);
        initialise(inputs_, units_);
      }
      for (int i = 0; i < p_.stages; ++i) {
        initialise(full_ + i);
        initialise(empty_ + i, kRowTiles * kGroupThreads);
      }
      publish();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader) {
      for (int i = 0; i < least(p_.stages, steps_); ++i) start_step(i, i);
    }
    Part part(p_.epilogue, vectors_ + k_slice_ * kPartFloats, first_channel_ + k_slice_ * kOwn, own_channels(),
              row_tile_ * kGroupThreads + thread_);
    const int steps = (p_.depth + kTileDepth - 1) / kTileDepth;
    const Prologue prologue(p_, vectors_ + kKSlices * kPartFloats, steps * kTileDepth);
    if constexpr (kPrologue) prologue.read(thread_index(), kThreads);
    block_barrier();
    if (is_first_) start_inputs();
    OwnSums own;
    multiply_all(prologue, own);
    if constexpr (kKind == EpilogueKind::plain) {
      if (p_.cluster > 1) {
        block_barrier();  // all groups are done with shared memory
        add_up_cluster(own, ring_ - kKSlices * p_.stages * kWeightBytes, kThreads, rank_, p_.cluster,
                       [&](int quad, const Aligned<float, 4>& sums) { store_positions(quad, sums); });
        return;
      }
    }
    if (has_x_ || has_added_) wait(inputs_, 0);
    const int positions = tile_positions();
    if (positions >= kTileRows) finish_tile<true>(own, positions, part);
    // Of a tile that does not exist the epilogue's inputs are what was in shared memory. Statistics take a pivot of it.
    else if (positions > 0 || Part::kStatistics) finish_tile<false>(own, positions, part);
    publish();
    if (sharing_ > 1) block_barrier();
    else row_tile_barrier();
    if (is_first_ && positions > 0) {
      tile_.start_store(p_.output, p_.output_rows, p_.channels, out_, first_channel_, kChannels, position_, image_);
      commit_stores();
    }
    if constexpr (kSums) {
      float* memory = reinterpret_cast<float*>(ring_) + k_slice_ * Part::merging_floats();
      if (is_first_) wait_for_stores();
      block_barrier();  // all are done with shared memory
      part.leave(memory);
      block_barrier();
      part.merge(memory, split_, first_channel_ + k_slice_ * kOwn, own_channels(), p_.channels);
    }
    if (is_first_) wait_for_stores();
  }

  // ----------------------------------------------------------------------------------------------------- by one thread

  /// Number `step` of the share's, to `slot`.
  FUSEDSC_DEVICE void start_step(int step, int slot) const {
    const int k = (share_ + step * shares_) * kTileDepth;
    const bool has_other = kPrologue && p_.has_other;
    Barrier* barrier = full_ + slot;
    const PlanesSource activations{p_.activations, p_.activations_rows, p_.depth},
        other{p_.other, p_.other_rows, p_.depth};
    int units = 0;
    while (units < units_ && exists(units * sharing_)) ++units;
    expect(barrier, units * (has_other ? 2 : 1) * tile_.copied_bytes(activations, k, kTileDepth) + kWeightBytes);
    unsigned char* weight = weights_ + slot * kWeightBytes;
    if constexpr (kWeightDepthFirst) {
      for (int block = 0; block < kBlocks; ++block) {
        start_load(weight + block * kTileDepth * kColumns * kSize, p_.weight, first_channel_ + block * kColumns, k,
                   barrier);
      }
    } else if (kTransposes && p_.smem_transposes_weight) {
      start_transposed<kChannels>(weight, p_.weight, first_channel_, k, barrier);
    } else {
      start_load(weight, p_.weight, k, first_channel_, barrier);
    }
    for (int i = 0; i < units; ++i) {
      unsigned char* tile = tiles_ + (i * kKSlices * p_.stages + slot) * tile_bytes_;
      int position;
      const int image = image_of(i * sharing_, position);
      tile_.start_load(tile, activations, k, kTileDepth, position, image, barrier);
      if (has_other) tile_.start_load(tile + in_bytes_, other, k, kTileDepth, position, image, barrier);
    }
  }

  FUSEDSC_DEVICE void start_inputs() const {
    if (!has_x_ && !has_added_) return;
    const PlanesSource x{p_.x, p_.x_rows, p_.channels}, added{p_.added, p_.added_rows, p_.channels};
    if (!exists(row_tile_)) return arrive(inputs_);
    expect(inputs_, (has_x_ && has_added_ ? 2 : 1) * tile_.copied_bytes(x, first_channel_, kChannels));
    if (has_x_) tile_.start_load(x_, x, first_channel_, kChannels, position_, image_, inputs_);
    if (has_added_) tile_.start_load(added_, added, first_channel_, kChannels, position_, image_, inputs_);
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE void row_tile_barrier() const { group_barrier<kKSlices * kGroupThreads>(row_tile_); }

  /// How many positions of the group's tile exist.
  FUSEDSC_DEVICE int tile_positions() const {
    return exists(row_tile_) ? least(p_.tiling.positions - position_, p_.tiling.part_positions) : 0;
  }

  FUSEDSC_DEVICE int own_channels() const {
    const int rest = p_.channels - first_channel_ - k_slice_ * kOwn;
    return rest < 0 ? 0 : least(rest, kOwn);
  }

  /// own = the group's own channels of the product.
  FUSEDSC_DEVICE void multiply_all(const Prologue& prologue, OwnSums& own) const {
    Sums sums = {};
    StageTurn turn;
    int last_slot = -1;
    const bool smem_transposes = kTransposes && p_.smem_transposes_weight,
               smem_transposes_at_once = smem_transposes && steps_ <= p_.stages;
    if constexpr (kTransposes) {
      if (smem_transposes_at_once) {
        transpose_tiles_together<kChannels, kRowTiles, kKSlices>(weights_, steps_, row_tile_, k_slice_,
                                                                 [&](int step) { wait(full_ + step, 0); });
      }
    }
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      wait(full_ + turn.slot, turn.parity);
      if constexpr (kTransposes) {
        if (smem_transposes && !smem_transposes_at_once) {
          transpose_tiles_together<kChannels, kRowTiles, kKSlices>(weights_ + turn.slot * kWeightBytes, 1, row_tile_,
                                                                   k_slice_);
        }
      }
      if constexpr (kMayRoundWeight) {
        if (p_.rounds_weight) {
          round_tile_together<kWeightBytes, kRowTiles, kKSlices>(weights_ + turn.slot * kWeightBytes, row_tile_,
                                                                 k_slice_);
        }
      }
      std::uint32_t rows[kPieces][4];
      wait_for_products<0>();  // which may still read these registers
      const int next = step - 1 + p_.stages;
      if (step > 0 && next < steps_) refill(next, last_slot, turn.parity ^ (turn.slot == 0 ? 1 : 0));
      load_step(rows, prologue, step, turn.slot);
      multiply_step(sums, rows, turn.slot);
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence(sums);
    put_together(sums, own);
  }

  /// Of the slot that all are done with: `parity` is that of its step. Each thread arrives for itself: tools which look
  /// for races do not see that one which arrives for its warp comes behind what the others have read. And they ask for
  /// a fence between what threads have read and the next copy of a run to there.
  FUSEDSC_DEVICE void refill(int step, int slot, int parity) const {
    publish();
    arrive(empty_ + slot);
    if (thread_ != 0 || row_tile_ != 0) return;
    wait(empty_ + slot, parity);
    start_step(step, slot);
  }

  /// to = a step's values.
  FUSEDSC_DEVICE void load_pieces(const unsigned char* tile, int existing, std::uint32_t (&to)[kPieces][4]) const {
    if constexpr (Positions::kWholeImages) {
      tile_.load_pieces(tile, kTileDepth, existing, to);
    } else {
      constexpr bool kHides = kTransposes && kChannels == 96;
      const auto load = [&](const Positions& positions) {
#pragma unroll
        for (int i = 0; i < kPieces; ++i) positions.load_rows(tile, kTileDepth, i * kPiece, existing, to[i]);
      };
      if constexpr (kHides) load(tile_.without_origin());
      else load(tile_);
    }
  }

  /// rows = what the prologue makes of a step's values.
  FUSEDSC_DEVICE void load_step(std::uint32_t (&rows)[kPieces][4], const Prologue& prologue, int step, int slot) const {
    const unsigned char* tile = tiles_ + slot * tile_bytes_;
    const int first = (share_ + step * shares_) * kTileDepth, existing = p_.depth - first;
    std::uint32_t others[kPieces][4] = {};
    load_pieces(tile, existing, rows);
    if constexpr (kPrologue && kInputGradient) {
      if (p_.has_other) load_pieces(tile + in_bytes_, existing, others);
    }
    if constexpr (kPrologue) prologue.change(rows, others, first);
    else round_pieces<T>(rows);
  }

  FUSEDSC_DEVICE std::uint64_t describe_weight(const unsigned char* weight, int k) const {
    constexpr int kRowBytes = kColumns * kSize;
    if constexpr (!kWeightDepthFirst) return describe<128>(weight) + k * kSize / 16;
    else return describe_blocks<kRowBytes>(weight + k * kRowBytes, kTileDepth * kRowBytes);
  }

  /// sums += rows times the weight. Beyond the end of k both are zeros.
  FUSEDSC_DEVICE void multiply_step(Sums& sums, const std::uint32_t (&rows)[kPieces][4], int slot) const {
    const unsigned char* weight = weights_ + slot * kWeightBytes;
    fence(sums);
    begin_products();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      multiply<kWeightDepthFirst>(sums, rows[i], describe_weight(weight, i * kPiece), false, T());
    }
    commit_products();
    fence(sums);
  }

  /// own = the sums of all shares of k, of the group's own channels. They pass through where its activations were.
  FUSEDSC_DEVICE void put_together(const Sums& sums, OwnSums& own) const {
    if constexpr (kKSlices > 1) group_barrier(kRowTiles + group_);  // its warps are done with these
    const Shares shares(tiles_, p_.stages * tile_bytes_, k_slice_, thread_);
    shares.put_together(sums, own, [&] { row_tile_barrier(); });
  }

  /// To shared memory. kAll: all positions of the tile exist.
  template <bool kAll>
  FUSEDSC_DEVICE void finish_tile(OwnSums& sums, int positions, Part& part) const {
    const bool exists[2] = {kAll || tile_.position(0) < positions, kAll || tile_.position(1) < positions};
    if constexpr (Part::kStatistics) {
#pragma unroll
      for (int i = 0; i < Shares::kOwnQuads; ++i) part.set_pivot(i * 8 + thread_ % 4 * 2, sums[i * 4], sums[i * 4 + 1]);
      warp_barrier();
      part.count(exists[0]);
      part.count(exists[1]);
    }
#pragma unroll
    for (int quad = 0; quad < Shares::kOwnQuads; quad += 2) {
      // Two positions of the pair in 8 channels, then of that in the next 8.
      float(&values)[8] = *reinterpret_cast<float(*)[8]>(sums + quad * 4);
      const int channel = k_slice_ * kOwn + quad * 8;
      Pair<T> x[4] = {}, added[4] = {};
      if (has_x_) tile_.read(x_, kChannels, channel, exists, x);
      if (has_added_) tile_.read(added_, kChannels, channel, exists, added);
      part.take(quad * 8, exists, values, x, added);
      tile_.store(out_, kChannels, channel, exists, values);
    }
  }

  /// What a block of a cluster takes, two channels of two positions, to memory.
  FUSEDSC_DEVICE void store_positions(int quad, const Aligned<float, 4>& sums) const {
    const int channel = first_channel_ + k_slice_ * kOwn + quad * 8 + thread_ % 4 * 2;
    T* to = static_cast<T*>(p_.output_rows) + (std::int64_t{image_} * p_.channels + channel) * p_.tiling.positions +
            position_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int position = tile_.position(i / 2);
      if (channel + i % 2 >= p_.channels || position >= tile_positions()) continue;
      from_accumulator(sums.elements[i], to[i % 2 * p_.tiling.positions + position]);
    }
  }

  const PlanesParameters& p_;
  const Positions tile_;
  int rank_, share_, shares_;  ///< of the cluster's blocks; of k, and how many there are in the cluster
  int group_, thread_, row_tile_, k_slice_, split_, first_channel_, position_, image_, steps_, in_bytes_, tile_bytes_;
  int sharing_, units_;
  bool is_first_, has_x_, has_added_;  ///< is_first: of the threads of a tile of outputs
  unsigned char *ring_, *tiles_, *weights_, *out_, *x_, *added_;
  Barrier *inputs_, *full_, *empty_;
  float* vectors_;
};

}  // namespace fusedsc::gpu::hopper
