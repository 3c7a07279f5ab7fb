/// Pointwise products of contiguous tensors on Hopper GPUs, with positions as the product's rows, through registers. A
/// block keeps the weight of its channels in shared memory; its warpgroups go their own ways, each with tiles
/// of 64 positions of an image.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_smem_transpose.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_thread_copied.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_tile.h"

namespace fusedsc::gpu::hopper {

/// kTileDepth: values of k that come at a time, 64 or 128 bytes of the weight. kInputGradient: a weight of 16-bit
/// elements has its channels innermost, and prologues are those of gradients. Positions: PlanesBox or PlanesShifted.
template <class T, int kChannels_, int kTileDepth_, int kGroups_, bool kPrologue, bool kInputGradient,
          EpilogueKind kKind, class Positions = PlanesBox<T>>
class PlanesProduct {
 public:
  static constexpr int kChannels = kChannels_, kTileDepth = kTileDepth_;
  static constexpr int kGroups = kGroups_, kThreads = kGroups * kGroupThreads;
  static constexpr bool kTransposes = kCanTranspose < T, kChannels, kTileDepth,
                        !kPrologue && kKind == EpilogueKind::plain > ;
  static constexpr bool kMayRoundWeight = sizeof(T) == 4 && !kInputGradient;  ///< whose weight has passed a kernel
  static_assert(kChannels % 16 == 0);

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(const PointwiseMemoryUse& use, const PlanesTiling& tiling,
                                                        int stages) {
    const int steps = (use.depth + kTileDepth - 1) / kTileDepth, inputs = (use.has_x ? 1 : 0) + (use.has_added ? 1 : 0);
    return 1024 + steps * kWeightBytes +
           kGroups * (stages * (use.has_other ? 2 : 1) * Positions::bytes(kTileDepth, tiling) +
                      (1 + kInputs * inputs) * Positions::bytes(kChannels, tiling)) +
           barrier_bytes(steps, stages) +
           4 * (Part::memory_floats(kGroups * 4) + (kPrologue ? Prologue::kVectors * steps * kTileDepth : 0));
  }

  FUSEDSC_DEVICE static void run(const PlanesParameters& p) {
    PlanesProduct product(p);
    product.loop();
  }

 private:
  using Sums = float[kChannels / 2];
  using Prologue = PointwisePrologue<T, kInputGradient>;  ///< of gradients: with another tensor
  using Part = Epilogue<T, kChannels, kThreads, kKind>;
  static constexpr int kSize = Positions::kSize, kPiece = Prologue::kPiece, kPieces = kTileDepth / kPiece;
  static constexpr bool kWeightDepthFirst = kInputGradient && kSize == 2, kLaysOut = kSize == 2;
  // Of a weight with its channels innermost: columns that lie together, and blocks of them.
  static constexpr int kColumns = kChannels > 32 ? 64 : 32, kBlocks = (kChannels + kColumns - 1) / kColumns;
  static constexpr int kDepthBytes = kTileDepth * kSize;
  static constexpr int kWeightBytes =
      ((kWeightDepthFirst ? kBlocks * kColumns : kChannels) * kDepthBytes + 1023) / 1024 * 1024;
  static constexpr int kWeightCopied = (kWeightDepthFirst ? kBlocks * kColumns : kChannels) * kDepthBytes;
  static constexpr int kInputs = 2;  ///< tiles of x and added that a group has under way
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int steps, int stages) {
    return (8 * (steps + kGroups * (stages + kInputs)) + 15) / 16 * 16;
  }

  FUSEDSC_DEVICE explicit PlanesProduct(const PlanesParameters& p)
      : p_(p), tile_(p.tiling, thread_index() % kGroupThreads, 0) {
    group_ = uniform(thread_index() / kGroupThreads);
    is_leader_ = thread_index() % kGroupThreads == 0;
    split_ = static_cast<int>(block_index()) / p.channel_tiles;
    first_channel_ = static_cast<int>(block_index()) % p.channel_tiles * kChannels;
    steps_ = (p.depth + kTileDepth - 1) / kTileDepth;
    first_tile_ = split_ * p.split_advance + group_ * p.group_advance;
    const int all = p.splits * kGroups;
    tiles_ = first_tile_ < p.pixel_tiles ? (p.pixel_tiles - first_tile_ + all - 1) / all : 0;
    has_x_ = Part::kTakesX && p.epilogue.has_x;
    has_added_ = Part::kTakesAdded && p.epilogue.has_added;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    weight_ = memory;
    memory += steps_ * kWeightBytes;
    in_bytes_ = Positions::bytes(kTileDepth, p.tiling);
    stage_bytes_ = kPrologue && p.has_other ? 2 * in_bytes_ : in_bytes_;
    out_bytes_ = Positions::bytes(kChannels, p.tiling);
    const int inputs = (has_x_ ? 1 : 0) + (has_added_ ? 1 : 0);
    const int own_bytes = p.stages * stage_bytes_ + (1 + kInputs * inputs) * out_bytes_;
    stages_ = memory + group_ * own_bytes;
    out_ = stages_ + p.stages * stage_bytes_;
    x_ = out_ + out_bytes_;
    added_ = x_ + (has_x_ ? kInputs * out_bytes_ : 0);
    memory += kGroups * own_bytes;
    weight_barriers_ = reinterpret_cast<Barrier*>(memory);
    barriers_ = weight_barriers_ + steps_ + group_ * (p.stages + kInputs);
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(steps_, p.stages));
    coefficients_ = vectors_ + Part::memory_floats(kGroups * 4);
  }

  /// Where a tile begins.
  FUSEDSC_DEVICE int image_of(int tile, int& position) const {
    auto rest = static_cast<std::uint32_t>(first_tile_ + tile * p_.splits * kGroups);
    const auto image = static_cast<int>(p_.parts.divide(rest));
    position = static_cast<int>(rest) * kTileRows;
    return image;
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      for (int i = 0; i < p_.stages + kInputs; ++i) initialise(barriers_ + i);
      if (group_ == 0) {
        prefetch_maps(p_);
        for (int i = 0; i < steps_; ++i) initialise(weight_barriers_ + i);
      }
      publish();
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    Part epilogue(p_.epilogue, vectors_, first_channel_, p_.channels - first_channel_, thread_index());
    const Prologue prologue(p_, coefficients_, steps_ * kTileDepth);
    if constexpr (kPrologue) prologue.read(thread_index(), kThreads);
    block_barrier();
    if (is_leader_) {
      const bool starts_weight = group_ == 0 && !lays_out();
      if (starts_weight) start_weight(0);
      for (int i = 0; i < p_.stages; ++i) start_next(i);
      if (starts_weight) {
        for (int i = 1; i < steps_; ++i) start_weight(i);
      }
      for (int tile = 0; tile < kInputs; ++tile) start_inputs(tile);
    }
    if constexpr (kLaysOut) {
      if (lays_out()) lay_out();
    }
    if constexpr (kTransposes) {
      if (p_.smem_transposes_weight) smem_transpose_weight();
    }
    if constexpr (kMayRoundWeight) {
      if (p_.rounds_weight) round_weight();
    }
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
#pragma unroll 1
      for (int step = 0; step < steps_; ++step) {
        if (tile == 0 && !lays_out()) wait(weight_barriers_ + step, 0);
        wait(barriers_ + turn.slot, turn.parity);
        multiply_step(sums, prologue, step, turn.slot);
        group_barrier(group_);  // all have read their rows
        if (is_leader_) start_next(turn.slot);
        turn.next(p_.stages);
      }
      wait_for_products<0>();
      fence(sums);
      if (is_leader_) wait_for_stores();
      group_barrier(group_);  // the last tile of outputs has gone
      if (has_x_ || has_added_) wait(barriers_ + p_.stages + tile % kInputs, tile / kInputs & 1);
      int position;
      const int image = image_of(tile, position);
      if (position + kTileRows <= p_.tiling.positions) finish_tile<true>(sums, tile, position, epilogue);
      else finish_tile<false>(sums, tile, position, epilogue);
      publish();
      group_barrier(group_);
      if constexpr (Positions::kThreadsStore)
        tile_.store_tile(p_.output_rows, p_.channels, out_, first_channel_, kChannels, position, image);
      if (!is_leader_) continue;
      if constexpr (!Positions::kThreadsStore) {
        tile_.start_store(p_.output, nullptr, p_.channels, out_, first_channel_, kChannels, position, image);
        commit_stores();
      }
      start_inputs(tile + kInputs);
    }
    if (is_leader_) wait_for_stores();
    if constexpr (Part::kStatistics || Part::kGradient) {
      block_barrier();
      epilogue.leave(reinterpret_cast<float*>(weight_));
      block_barrier();
      epilogue.merge(reinterpret_cast<float*>(weight_), split_, first_channel_,
                     least(p_.channels - first_channel_, kChannels), p_.channels);
    }
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE void start_weight(int step) const {
    Barrier* barrier = weight_barriers_ + step;
    unsigned char* to = weight_ + step * kWeightBytes;
    expect(barrier, kWeightCopied);
    if constexpr (kWeightDepthFirst) {
      for (int block = 0; block < kBlocks; ++block) {
        start_load(to + block * kColumns * kDepthBytes, p_.weight, first_channel_ + block * kColumns, step * kTileDepth,
                   barrier);
      }
    } else if (kTransposes && p_.smem_transposes_weight) {
      start_transposed<kChannels>(to, p_.weight, first_channel_, step * kTileDepth, barrier);
    } else {
      start_load(to, p_.weight, step * kTileDepth, first_channel_, barrier);
    }
  }

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_tile_ >= tiles_) return;
    unsigned char* to = stages_ + slot * stage_bytes_;
    int position;
    const int k = next_step_ * kTileDepth, image = image_of(next_tile_, position);
    const bool has_other = kPrologue && p_.has_other;
    const auto load = [&](unsigned char* tile, const TensorMap& map) {
      tile_.start_load(tile, {map, nullptr, p_.depth}, k, kTileDepth, position, image, barriers_ + slot);
    };
    const PlanesSource source{p_.activations, nullptr, p_.depth};
    expect(barriers_ + slot, (has_other ? 2 : 1) * tile_.copied_bytes(source, k, kTileDepth));
    load(to, p_.activations);
    if (has_other) load(to + in_bytes_, p_.other);
    if (++next_step_ == steps_) {
      next_step_ = 0;
      ++next_tile_;
    }
  }

  FUSEDSC_DEVICE void start_inputs(int tile) const {
    if ((!has_x_ && !has_added_) || tile >= tiles_) return;
    Barrier* barrier = barriers_ + p_.stages + tile % kInputs;
    const int slot = tile % kInputs * out_bytes_;
    int position;
    const int image = image_of(tile, position);
    const PlanesSource source{p_.x, nullptr, p_.channels};
    expect(barrier, (has_x_ && has_added_ ? 2 : 1) * tile_.copied_bytes(source, first_channel_, kChannels));
    const auto load = [&](unsigned char* to, const TensorMap& map) {
      tile_.start_load(to, {map, nullptr, p_.channels}, first_channel_, kChannels, position, image, barrier);
    };
    if (has_x_) load(x_ + slot, p_.x);
    if (has_added_) load(added_ + slot, p_.added);
  }

  // --------------------------------------------------------------------------------------- by all threads of the block

  FUSEDSC_DEVICE bool lays_out() const { return kLaysOut && p_.source.data != nullptr; }

  FUSEDSC_DEVICE void lay_out() const {
    lay_out_steps<T, kWeightDepthFirst, kChannels, kTileDepth, kColumns>(
        p_.source, {weight_, kWeightBytes, first_channel_, 0, kTileDepth, steps_}, thread_index(), kThreads);
    publish();
    block_barrier();
  }

  /// All of the weight.
  FUSEDSC_DEVICE void smem_transpose_weight() const {
    for (int i = 0; i < steps_; ++i) wait(weight_barriers_ + i, 0);
    transpose_tiles<kChannels>(weight_, steps_, thread_index() / 32, kGroups * 4);
    block_barrier();
  }

  /// Likewise.
  FUSEDSC_DEVICE void round_weight() const {
    for (int i = 0; i < steps_; ++i) {
      wait(weight_barriers_ + i, 0);
      round_floats<kWeightCopied, kThreads>(weight_ + i * kWeightBytes, thread_index());
    }
    publish();
    block_barrier();
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE std::uint64_t describe_weight(int step, int k) const {
    const unsigned char* weight = weight_ + step * kWeightBytes;
    constexpr int kRowBytes = kColumns * kSize;
    if constexpr (!kWeightDepthFirst) return describe<kDepthBytes>(weight) + k * kSize / 16;
    else return describe_blocks<kRowBytes>(weight + k * kRowBytes, kTileDepth * kRowBytes);
  }

  /// sums += what the prologue makes of a step's values, times the weight.
  FUSEDSC_DEVICE void multiply_step(Sums& sums, const Prologue& prologue, int step, int slot) const {
    const int depth = p_.depth - step * kTileDepth;
    std::uint32_t rows[kPieces][4];
    wait_for_products<0>();  // which may still read these registers
    // Halves, of which the last step may have one only.
    auto& halves = reinterpret_cast<std::uint32_t(&)[2][kPieces / 2][4]>(rows);
    load_half(halves[0], prologue, step, slot, 0);
    if (depth > kTileDepth / 2) load_half(halves[1], prologue, step, slot, kTileDepth / 2);
    fence(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileDepth; k += kPiece) {
      if (k >= depth) break;
      multiply<kWeightDepthFirst>(sums, rows[k / kPiece], describe_weight(step, k), step == 0 && k == 0, T());
    }
    commit_products();
    fence(sums);
  }

  FUSEDSC_DEVICE void load_half(std::uint32_t (&rows)[kPieces / 2][4], const Prologue& prologue, int step, int slot,
                                int k) const {
    const unsigned char* tile = stages_ + slot * stage_bytes_;
    std::uint32_t others[kPieces / 2][4] = {};
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      tile_.load_rows(tile, kTileDepth, k + i * kPiece, kTileDepth, rows[i]);
      if constexpr (kPrologue && kInputGradient) {
        if (p_.has_other) tile_.load_rows(tile + in_bytes_, kTileDepth, k + i * kPiece, kTileDepth, others[i]);
      }
    }
    if constexpr (kPrologue) prologue.change(rows, others, step * kTileDepth + k);
    else round_pieces<T>(rows);
  }

  /// To shared memory. kAll: all positions of the tile exist.
  template <bool kAll>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, int tile, int position, Part& epilogue) const {
    const int positions = p_.tiling.positions;
    const bool exists[2] = {kAll || position + tile_.position(0) < positions,
                            kAll || position + tile_.position(1) < positions};
    const int slot = tile % kInputs * out_bytes_;
    if constexpr (Part::kStatistics) {
      if (tile == 0) {
#pragma unroll
        for (int i = 0; i < kChannels / 8; ++i) {
          epilogue.set_pivot(i * 8 + thread_index() % 4 * 2, sums[i * 4], sums[i * 4 + 1]);
        }
        warp_barrier();
      }
      epilogue.count(exists[0]);
      epilogue.count(exists[1]);
    }
#pragma unroll
    for (int channel = 0; channel < kChannels; channel += 16) {
      // Two positions of the pair in 8 channels, then of that in the next 8.
      float(&values)[8] = *reinterpret_cast<float(*)[8]>(sums + channel / 2);
      Pair<T> x[4] = {}, added[4] = {};
      if (has_x_) tile_.read(x_ + slot, kChannels, channel, exists, x);
      if (has_added_) tile_.read(added_ + slot, kChannels, channel, exists, added);
      epilogue.take(channel, exists, values, x, added);
      tile_.store(out_, kChannels, channel, exists, values);
    }
  }

  const PlanesParameters& p_;
  const Positions tile_;
  int group_, split_, first_channel_, first_tile_, steps_, tiles_, in_bytes_, stage_bytes_, out_bytes_;
  int next_tile_ = 0, next_step_ = 0;  ///< what the leader copies next
  bool is_leader_, has_x_, has_added_;
  unsigned char *weight_, *stages_, *out_, *x_, *added_;
  Barrier *barriers_, *weight_barriers_;
  float *vectors_, *coefficients_;
};

}  // namespace fusedsc::gpu::hopper
