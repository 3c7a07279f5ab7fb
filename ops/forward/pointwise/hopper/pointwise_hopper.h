/// Pointwise products on Hopper GPUs: a block keeps the weight of its channels in shared memory; positions come by the
/// TMA, 64 at a time to each of its warpgroups, which go their own ways: while one stores, others
/// multiply.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_prologue.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_smem_transpose.h"

namespace fusedsc::gpu::hopper {

/// kTileDepth: values of k that come at a time, 64 or 128 bytes. kInputGradient: the weight's channels are innermost
/// (of floats, which products need the other way around, its k all the same), and prologues are those of gradients.
template <class T, int kChannels_, int kTileDepth_, int kGroups_, bool kPrologue, bool kInputGradient,
          EpilogueKind kKind>
class PointwiseProduct {
 public:
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kChannels = kChannels_, kTileDepth = kTileDepth_;
  static constexpr int kGroups = kGroups_, kThreads = kGroups * kGroupThreads;
  /// Columns of a tile of outputs or of a weight with its channels innermost, and the bytes of its rows.
  static constexpr int kColumns = columns_of_tile<T>(kChannels), kRowBytes = kColumns * kSize;
  static constexpr int kBlocks = kChannels / kColumns;
  static_assert(kChannels % kColumns == 0);

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(const PointwiseMemoryUse& use, int stages) {
    const int steps = (use.depth + kTileDepth - 1) / kTileDepth,
              tiles = 1 + kInputs * ((use.has_x ? 1 : 0) + (use.has_added ? 1 : 0));
    return 1024 + steps * kWeightBytes + kGroups * stages * (use.has_other ? 2 : 1) * kStageBytes +
           kGroups * tiles * kOutBytes + barrier_bytes(steps, stages) +
           4 * (Part::memory_floats(kGroups * 4) + (kPrologue ? Prologue::kVectors * steps * kTileDepth : 0));
  }

  FUSEDSC_DEVICE static void run(const PointwiseParameters& p) {
    PointwiseProduct product(p);
    product.loop();
  }

 private:
  static constexpr bool kWeightDepthFirst = kInputGradient && kSize == 2;
  /// Columns of a product. With k innermost the weight's rows follow each other, however many there are.
  static constexpr int kWidth = kSize == 2 ? kColumns : kChannels, kProducts = kChannels / kWidth;
  using Sums = float[kProducts][kWidth / 2];
  using Prologue = PointwisePrologue<T, kInputGradient>;  ///< of gradients: with another tensor
  using Part = Epilogue<T, kChannels, kThreads, kKind>;
  /// How activations reach products: to be changed, or to be rounded. Reading them from shared memory, products would
  /// cut floats off, and would read it as often.
  static constexpr bool kThroughRegisters = kPrologue || kSize == 4;
  static constexpr bool kMayRoundWeight = kSize == 4 && !kInputGradient;  ///< whose weight has passed a kernel
  static constexpr bool kTransposes = kCanTranspose < T, kChannels, kTileDepth,
                        !kPrologue && kKind == EpilogueKind::plain > ;
  static constexpr int kPiece = Prologue::kPiece, kPieces = kTileDepth / kPiece;
  static constexpr int kDepthBytes = kTileDepth * kSize, kStageBytes = kTileRows * kDepthBytes,
                       kWeightBytes = kChannels * kDepthBytes;
  static constexpr int kInputs = 2;  ///< tiles of x and added that a group has under way
  /// Steps whose copies are started before the barrier that all wait at: to start them all takes a microsecond.
  static constexpr int kEarly = 2;
  static constexpr int kOutBytes = kTileRows * kChannels * kSize, kBlockBytes = kTileRows * kRowBytes;
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int steps, int stages) {
    return 8 * (steps + kGroups * (stages + kInputs)) + 16;
  }

  FUSEDSC_DEVICE explicit PointwiseProduct(const PointwiseParameters& p) : p_(p) {
    group_ = uniform(thread_index() / kGroupThreads);
    is_leader_ = thread_index() % kGroupThreads == 0;
    const int channel_tile = static_cast<int>(block_index()) % p.channel_tiles;
    split_ = static_cast<int>(block_index()) / p.channel_tiles;
    first_channel_ = channel_tile * kChannels;
    steps_ = (p.depth + kTileDepth - 1) / kTileDepth;
    const int first = split_ * kGroups + group_, all = p.splits * kGroups;
    tiles_ = first < p.pixel_tiles ? (p.pixel_tiles - first + all - 1) / all : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    weight_ = memory;
    memory += steps_ * kWeightBytes;
    stage_bytes_ = kPrologue && p.has_other ? 2 * kStageBytes : kStageBytes;
    stages_ = memory + group_ * p.stages * stage_bytes_;
    memory += kGroups * p.stages * stage_bytes_;
    has_x_ = Part::kTakesX && p.epilogue.has_x;
    has_added_ = Part::kTakesAdded && p.epilogue.has_added;
    const int tiles = 1 + kInputs * ((has_x_ ? 1 : 0) + (has_added_ ? 1 : 0));
    out_ = memory + group_ * tiles * kOutBytes;
    x_ = out_ + kOutBytes;
    added_ = x_ + (has_x_ ? kInputs * kOutBytes : 0);
    memory += kGroups * tiles * kOutBytes;
    barriers_ = reinterpret_cast<Barrier*>(memory);
    weight_barriers_ = barriers_ + kGroups * (p.stages + kInputs);
    barriers_ += group_ * (p.stages + kInputs);
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(steps_, p.stages) / 16 * 16);
    coefficients_ = vectors_ + Part::memory_floats(kGroups * 4);
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const {
    return (split_ * kGroups + group_ + tile * p_.splits * kGroups) * kTileRows;
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      for (int i = 0; i < p_.stages + kInputs; ++i) initialise(barriers_ + i);
      if (group_ == 0) {
        prefetch_maps(p_);
        for (int i = 0; i < steps_; ++i) initialise(weight_barriers_ + i);
      }
      publish();
      start_first(0, kEarly, p_.has_old_activations(), p_.has_old_weight());
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader_) start_first(0, kEarly, !p_.has_old_activations(), !p_.has_old_weight());
    Part epilogue(p_.epilogue, vectors_, first_channel_, p_.channels - first_channel_, thread_index());
    const Prologue prologue(p_, coefficients_, steps_ * kTileDepth);
    if constexpr (kPrologue) prologue.read(thread_index(), kThreads);
    block_barrier();
    if (is_leader_) {
      start_first(kEarly, p_.stages < steps_ ? steps_ : p_.stages, true, true);
      for (int tile = 0; tile < kInputs; ++tile) start_inputs(tile);
    }
    if (lays_out()) lay_out();
    if constexpr (kTransposes) {
      if (p_.smem_transposes_weight) smem_transpose_weight();
    }
    if constexpr (kMayRoundWeight) {
      if (p_.rounds_weight) round_weight();
    }
    StageTurn turn;
    int last_slot = -1;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      if constexpr (kPrologue) {
        prologue.with_change([&](const auto& change) { multiply_changed(sums, change, tile, turn); });
      } else if constexpr (kThroughRegisters) {
        const auto round = [](auto& words, const auto& /*others*/, int /*k*/) { round_pieces<T>(words); };
        multiply_changed(sums, round, tile, turn);
      } else {
#pragma unroll 1
        for (int step = 0; step < steps_; ++step) {
          wait_for_step(tile, step, turn);
          multiply_plain(sums, step, turn.slot);
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
      fence(sums);
      if (is_leader_) wait_for_stores();
      group_barrier(group_);  // all are done with the last tile of positions, and with the last tile of outputs
      if (is_leader_ && last_slot >= 0) start_next(last_slot);
      last_slot = -1;
      const int pixel = first_pixel(tile);
      if (has_x_ || has_added_) wait(barriers_ + p_.stages + tile % kInputs, tile / kInputs & 1);
      if constexpr (!Part::kHasWork) store_sums(sums);
      else if (pixel + kTileRows <= p_.pixels) store_tile<true>(sums, tile, epilogue);
      else store_tile<false>(sums, tile, epilogue);
      publish();
      group_barrier(group_);
      if (!is_leader_) continue;
      for (int block = 0; block < kBlocks; ++block) {
        start_store(p_.output, first_channel_ + block * kColumns, pixel, out_ + block * kBlockBytes);
      }
      commit_stores();
      start_inputs(tile + kInputs);
    }
    if (is_leader_) wait_for_stores();
    if constexpr (kKind == EpilogueKind::statistics || kKind == EpilogueKind::gradient) {
      block_barrier();
      epilogue.leave(reinterpret_cast<float*>(weight_));
      block_barrier();
      epilogue.merge(reinterpret_cast<float*>(weight_), split_, first_channel_,
                     least(p_.channels - first_channel_, kChannels), p_.channels);
    }
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  /// Tiles of positions for the stages from `begin` on, and the weight of as many steps; before `end`.
  FUSEDSC_DEVICE void start_first(int begin, int end, bool with_activations, bool with_weight) {
    for (int i = begin; i < end; ++i) {
      if (with_weight && group_ == 0 && i < steps_ && !lays_out()) start_weight(i);
      if (with_activations && i < p_.stages) start_next(i);
    }
  }

  FUSEDSC_DEVICE void start_weight(int step) const {
    Barrier* barrier = weight_barriers_ + step;
    unsigned char* to = weight_ + step * kWeightBytes;
    expect(barrier, kWeightBytes);
    if constexpr (kWeightDepthFirst) {
      for (int block = 0; block < kBlocks; ++block) {
        start_load(to + block * kTileDepth * kRowBytes, p_.weight, first_channel_ + block * kColumns, step * kTileDepth,
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
    const int k = next_step_ * kTileDepth, pixel = first_pixel(next_tile_);
    expect(barriers_ + slot, stage_bytes_);
    start_load(to, p_.activations, k, pixel, barriers_ + slot);
    if constexpr (kPrologue) {
      if (p_.has_other) start_load(to + kStageBytes, p_.other, k, pixel, barriers_ + slot);
    }
    if (++next_step_ == steps_) {
      next_step_ = 0;
      ++next_tile_;
    }
  }

  FUSEDSC_DEVICE void start_inputs(int tile) const {
    if ((!has_x_ && !has_added_) || tile >= tiles_) return;
    Barrier* barrier = barriers_ + p_.stages + tile % kInputs;
    unsigned char *x = x_ + tile % kInputs * kOutBytes, *added = added_ + tile % kInputs * kOutBytes;
    expect(barrier, (has_x_ && has_added_ ? 2 : 1) * kOutBytes);
    for (int block = 0; block < kBlocks; ++block) {
      const int channel = first_channel_ + block * kColumns;
      if (has_x_) start_load(x + block * kBlockBytes, p_.x, channel, first_pixel(tile), barrier);
      if (has_added_) start_load(added + block * kBlockBytes, p_.added, channel, first_pixel(tile), barrier);
    }
  }

  // --------------------------------------------------------------------------------------- by all threads of the block

  FUSEDSC_DEVICE bool lays_out() const { return p_.source.data != nullptr; }

  FUSEDSC_DEVICE void lay_out() const {
    lay_out_steps<T, kWeightDepthFirst, kChannels, kTileDepth, kColumns>(
        p_.source, {weight_, kWeightBytes, first_channel_, 0, kTileDepth, steps_}, thread_index(), kThreads);
    publish();
    block_barrier();
  }

  /// All of the weight, by all threads.
  FUSEDSC_DEVICE void smem_transpose_weight() const {
    for (int i = 0; i < steps_; ++i) wait(weight_barriers_ + i, 0);
    transpose_tiles<kChannels>(weight_, steps_, thread_index() / 32, kGroups * 4);
    block_barrier();
  }

  /// Likewise.
  FUSEDSC_DEVICE void round_weight() const {
    for (int i = 0; i < steps_; ++i) {
      wait(weight_barriers_ + i, 0);
      round_floats<kWeightBytes, kThreads>(weight_ + i * kWeightBytes, thread_index());
    }
    publish();
    block_barrier();
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE std::uint64_t describe_weight(int step, int block, int k) const {
    const unsigned char* weight = weight_ + step * kWeightBytes;
    if constexpr (kWeightDepthFirst) {
      return describe<kRowBytes>(weight + (block * kTileDepth + k) * kRowBytes);
    } else {
      return describe<kDepthBytes>(weight + block * kWidth * kDepthBytes) + k * kSize / 16;
    }
  }

  /// sums += rows_of(k) times the weight, for each piece of a step's values of k.
  template <class RowsOf>
  FUSEDSC_DEVICE void multiply_step(Sums& sums, int step, const RowsOf& rows_of) const {
    const int depth = p_.depth - step * kTileDepth;
    fence(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileDepth; k += kPiece) {
      if (k >= depth) break;
#pragma unroll
      for (int block = 0; block < kProducts; ++block) {
        multiply<kWeightDepthFirst>(sums[block], rows_of(k), describe_weight(step, block, k), step == 0 && k == 0, T());
      }
    }
    commit_products();
    fence(sums);
  }

  FUSEDSC_DEVICE void multiply_plain(Sums& sums, int step, int slot) const {
    const std::uint64_t rows = describe<kDepthBytes>(stages_ + slot * stage_bytes_);
    multiply_step(sums, step, [&](int k) { return rows + k * kSize / 16; });
  }

  FUSEDSC_DEVICE void wait_for_step(int tile, int step, const StageTurn& turn) const {
    if (tile == 0 && !lays_out()) wait(weight_barriers_ + step, 0);
    wait(barriers_ + turn.slot, turn.parity);
  }

  /// All steps of a tile with the prologue, or rounded, through registers: two sets of them, so that one is changed
  /// while products read the other.
  template <class Change>
  FUSEDSC_DEVICE void multiply_changed(Sums& sums, const Change& change, int tile, StageTurn& turn) {
    std::uint32_t rows[2][kPieces][4];
#pragma unroll 1
    for (int first = 0; first < steps_; first += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = first + i;
        if (i == 1 && step == steps_) break;
        wait_for_step(tile, step, turn);
        // Halves, of which the last step may have one only.
        auto& halves = reinterpret_cast<std::uint32_t(&)[2][kPieces / 2][4]>(rows[i]);
        change_half(halves[0], change, step, turn.slot, 0);
        if (p_.depth - step * kTileDepth > kTileDepth / 2) {
          change_half(halves[1], change, step, turn.slot, kTileDepth / 2);
        }
        multiply_step(sums, step, [&](int k) -> const std::uint32_t(&)[4] { return rows[i][k / kPiece]; });
        group_barrier(group_);
        if (is_leader_) start_next(turn.slot);
        turn.next(p_.stages);
        wait_for_products<1>();  // which have read the other registers
      }
    }
  }

  /// rows = what becomes of a step's values from k on.
  template <class Change>
  FUSEDSC_DEVICE void change_half(std::uint32_t (&rows)[kPieces / 2][4], const Change& change, int step, int slot,
                                  int k) const {
    const unsigned char* tile = stages_ + slot * stage_bytes_;
    const int lane = thread_index() % 32, row = thread_index() % kGroupThreads / 32 * 16 + lane % 16;
    std::uint32_t others[kPieces / 2][4] = {};
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      const int place = place_of_run<kDepthBytes>(row, (k / kPiece + i) * 2 + lane / 16);
      load_matrices(tile + place, rows[i]);
      if constexpr (kPrologue && kInputGradient) load_matrices(tile + kStageBytes + place, others[i]);
    }
    change(rows, others, step * kTileDepth + k);
  }

  /// To shared memory, as they are.
  FUSEDSC_DEVICE void store_sums(Sums& sums) const {
    const PairsOfTile<T, kRowBytes> pairs(thread_index() % kGroupThreads);
#pragma unroll
    for (int channel = 0; channel < kChannels; channel += 16) {
      pairs.store(out_ + channel / kColumns * kBlockBytes, channel % kColumns,
                  *reinterpret_cast<float(*)[8]>(sums[channel / kWidth] + channel % kWidth / 2));
    }
  }

  /// Likewise, through the epilogue. kAll: all rows of the tile exist.
  template <bool kAll>
  FUSEDSC_DEVICE void store_tile(Sums& sums, int tile, Part& epilogue) const {
    auto thread = static_cast<std::uint32_t>(thread_index());
    hide_origin(thread);  // its row is worked out here: a register that waits for it through all products is spilled
    const int lane = thread_index() % 32, row = static_cast<int>(thread % kGroupThreads / 32 * 16 + thread % 32 / 4);
    const PairsOfTile<T, kRowBytes> pairs(thread_index() % kGroupThreads);
    const int pixel = first_pixel(tile);
    const bool exists[2] = {kAll || pixel + row < p_.pixels, kAll || pixel + row + 8 < p_.pixels};
    const unsigned char *x_tile = x_ + tile % kInputs * kOutBytes, *added_tile = added_ + tile % kInputs * kOutBytes;
    if constexpr (Part::kStatistics) {
      if (tile == 0) {
#pragma unroll
        for (int i = 0; i < kChannels / 8; ++i) {
          const float* pair = sums[i * 8 / kWidth] + i * 8 % kWidth / 2;
          epilogue.set_pivot(i * 8 + lane % 4 * 2, pair[0], pair[1]);
        }
        warp_barrier();
      }
      epilogue.count(exists[0]);
      epilogue.count(exists[1]);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int column = 0; column < kColumns; column += 16) {
        const int channel = block * kColumns + column;
        // Two positions of the pair in 8 channels, then of that in the next 8.
        float(&values)[8] = *reinterpret_cast<float(*)[8]>(sums[channel / kWidth] + channel % kWidth / 2);
        Pair<T> x[4] = {}, added[4] = {};
        if (has_x_) pairs.read(x_tile + block * kBlockBytes, column, x);
        if (has_added_) pairs.read(added_tile + block * kBlockBytes, column, added);
        epilogue.take(channel, exists, values, x, added);
        pairs.store(out_ + block * kBlockBytes, column, values);
      }
    }
  }

  const PointwiseParameters& p_;
  int group_, split_, first_channel_, steps_, tiles_, stage_bytes_;
  int next_tile_ = 0, next_step_ = 0;  ///< what the leader copies next
  bool is_leader_, has_x_, has_added_;
  unsigned char *weight_, *stages_, *out_, *x_, *added_;
  Barrier *barriers_, *weight_barriers_;
  float *vectors_, *coefficients_;
};

}  // namespace fusedsc::gpu::hopper
