/// Pointwise products on Hopper GPUs of few channels that are no whole lines of memory: a tile of positions is one run
/// of bytes, which comes and goes by one plain copy, and its rows lie in shared memory as they do in the tensor.
/// Products read them through registers. A block keeps the whole weight; its warpgroups go their own ways.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_prologue.h"

namespace fusedsc::gpu::hopper {

/// kChannels: at least as many as there are.
template <class T, int kChannels_, int kGroups_, bool kWeightDepthFirst, EpilogueKind kKind>
class PointwiseRowsProduct {
 public:
  static constexpr int kChannels = kChannels_, kGroups = kGroups_, kThreads = kGroups * kGroupThreads;
  static constexpr int kTileDepth = 64;
  static_assert(kChannels % 16 == 0 && (kKind == EpilogueKind::plain || kKind == EpilogueKind::inference));

  FUSEDSC_HOST_DEVICE static constexpr int memory_bytes(const PointwiseMemoryUse& use, int stages) {
    return 1024 + steps_of(use.depth) * kWeightBytes + kGroups * group_bytes(use, stages) + barrier_bytes(stages) +
           4 * Part::memory_floats(kGroups * 4);
  }

  FUSEDSC_DEVICE static void run(const PointwiseParameters& p) {
    PointwiseRowsProduct product(p);
    product.loop();
  }

 private:
  using Sums = float[kChannels / 2];
  using Part = Epilogue<T, kChannels, kThreads, kKind>;
  static constexpr int kBlocks = (kChannels + 63) / 64, kRowBytes = 128;  ///< of a weight with its channels innermost
  static constexpr int kWeightBytes = (kWeightDepthFirst ? kBlocks * 64 : kChannels) * kTileDepth * 2;
  static constexpr int kInputs = 2;  ///< tiles of x and added that a group has under way
  static constexpr int kSpareBytes = kGroupThreads / 2 * 16;

  FUSEDSC_HOST_DEVICE static constexpr int steps_of(int depth) { return (depth + kTileDepth - 1) / kTileDepth; }
  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) {
    return (8 * (1 + kGroups * (stages + kInputs)) + 15) / 16 * 16;
  }
  /// Stages, inputs of the epilogue, the result, and what is written beyond its last channel.
  FUSEDSC_HOST_DEVICE static constexpr int group_bytes(const PointwiseMemoryUse& use, int stages) {
    return kTileRows * 2 * (use.depth * stages + use.channels * (use.has_added ? 1 + kInputs : 1)) + kSpareBytes;
  }

  FUSEDSC_DEVICE explicit PointwiseRowsProduct(const PointwiseParameters& p) : p_(p) {
    group_ = uniform(thread_index() / kGroupThreads);
    thread_ = thread_index() % kGroupThreads;
    is_leader_ = thread_ == 0;
    split_ = static_cast<int>(block_index());
    steps_ = steps_of(p.depth);
    const int first = group_ * p.splits + split_, all = p.splits * kGroups;
    tiles_ = first < p.pixel_tiles ? (p.pixel_tiles - first + all - 1) / all : 0;
    in_pitch_ = p.depth * 2;
    out_pitch_ = p.channels * 2;
    has_added_ = Part::kTakesAdded && p.epilogue.has_added;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    weight_ = memory;
    memory += steps_ * kWeightBytes;
    const int own_bytes = group_bytes({p.depth, p.channels, false, false, has_added_}, p.stages);
    stage_bytes_ = kTileRows * in_pitch_;
    stages_ = memory + group_ * own_bytes;
    out_ = stages_ + p.stages * stage_bytes_;
    added_ = out_ + kTileRows * out_pitch_;
    spare_ = stages_ + own_bytes - kSpareBytes;
    memory += kGroups * own_bytes;
    weight_barrier_ = reinterpret_cast<Barrier*>(memory);
    barriers_ = weight_barrier_ + 1 + group_ * (p.stages + kInputs);
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE int first_pixel(int tile) const {
    return (split_ + (group_ + tile * kGroups) * p_.splits) * kTileRows;
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      for (int i = 0; i < p_.stages + kInputs; ++i) initialise(barriers_ + i);
      if (group_ == 0) initialise(weight_barrier_);
      publish();
      for (int tile = 0; p_.weight_is_new && tile < p_.stages; ++tile) start_tile(tile, tile);
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (is_leader_) {
      for (int tile = 0; !p_.weight_is_new && tile < p_.stages; ++tile) start_tile(tile, tile);
      if (group_ == 0 && !lays_out()) start_weight();
      for (int tile = 0; tile < kInputs; ++tile) start_inputs(tile);
    }
    Part epilogue(p_.epilogue, vectors_, 0, p_.channels, thread_index());
    if (lays_out()) lay_out();
    block_barrier();
    if (!lays_out()) wait(weight_barrier_, 0);
    StageTurn turn;
    Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < tiles_; ++tile) {
      wait(barriers_ + turn.slot, turn.parity);
      multiply_tile(sums, stages_ + turn.slot * stage_bytes_);
      if (is_leader_) wait_for_stores();
      group_barrier(group_);  // all are done with the tile of positions, and the last tile of outputs has gone
      if (is_leader_) start_tile(tile + p_.stages, turn.slot);
      if (has_added_) wait(barriers_ + p_.stages + tile % kInputs, tile / kInputs & 1);
      const int rows = p_.pixels - first_pixel(tile);
      store_tile(sums, tile, epilogue);
      publish();
      group_barrier(group_);
      if (is_leader_) {
        start_store(static_cast<unsigned char*>(p_.output_rows) + place_of(tile, out_pitch_), out_,
                    least(rows, kTileRows) * out_pitch_);
        commit_stores();
        start_inputs(tile + kInputs);
      }
      turn.next(p_.stages);
    }
    if (is_leader_) wait_for_stores();
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE std::int64_t place_of(int tile, int pitch) const {
    return static_cast<std::int64_t>(first_pixel(tile)) * pitch;
  }

  FUSEDSC_DEVICE void start_weight() const {
    expect(weight_barrier_, steps_ * kWeightBytes);
    for (int step = 0; step < steps_; ++step) {
      unsigned char* to = weight_ + step * kWeightBytes;
      if constexpr (kWeightDepthFirst) {
        for (int block = 0; block < kBlocks; ++block) {
          start_load(to + block * kTileDepth * kRowBytes, p_.weight, block * 64, step * kTileDepth, weight_barrier_);
        }
      } else {
        start_load(to, p_.weight, step * kTileDepth, 0, weight_barrier_);
      }
    }
  }

  FUSEDSC_DEVICE static const unsigned char* at(const void* tensor, std::int64_t place) {
    return static_cast<const unsigned char*>(tensor) + place;
  }

  FUSEDSC_DEVICE void start_tile(int tile, int slot) const {
    if (tile >= tiles_) return;
    unsigned char* to = stages_ + slot * stage_bytes_;
    const int bytes = least(p_.pixels - first_pixel(tile), kTileRows) * in_pitch_;
    const std::int64_t place = place_of(tile, in_pitch_);
    expect(barriers_ + slot, bytes);
    start_load(to, at(p_.activations_rows, place), bytes, barriers_ + slot);
  }

  FUSEDSC_DEVICE void start_inputs(int tile) const {
    if (!has_added_ || tile >= tiles_) return;
    Barrier* barrier = barriers_ + p_.stages + tile % kInputs;
    const int bytes = least(p_.pixels - first_pixel(tile), kTileRows) * out_pitch_;
    const int slot = tile % kInputs * kTileRows * out_pitch_;
    const std::int64_t place = place_of(tile, out_pitch_);
    expect(barrier, bytes);
    start_load(added_ + slot, at(p_.added_rows, place), bytes, barrier);
  }

  // --------------------------------------------------------------------------------------- by all threads of the block

  FUSEDSC_DEVICE bool lays_out() const { return p_.source.data != nullptr; }

  FUSEDSC_DEVICE void lay_out() const {
    lay_out_steps<T, kWeightDepthFirst, kChannels, kTileDepth, 64>(
        p_.source, {weight_, kWeightBytes, 0, 0, kTileDepth, steps_}, thread_index(), kThreads);
    publish();
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE std::uint64_t describe_weight(int step, int k) const {
    const unsigned char* weight = weight_ + step * kWeightBytes;
    if constexpr (!kWeightDepthFirst) return describe<kTileDepth * 2>(weight) + k * 2 / 16;
    else return describe_blocks<kRowBytes>(weight + k * kRowBytes, kTileDepth * kRowBytes);
  }

  /// sums = the tile's rows times the weight.
  FUSEDSC_DEVICE void multiply_tile(Sums& sums, const unsigned char* tile) const {
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane % 16;
    const unsigned char* from = tile + row * in_pitch_;
    const int second_half = lane / 16 * 16;  // of a piece's bytes: what these lanes point at
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      const int first = step * kTileDepth;
      std::uint32_t rows[kTileDepth / 16][4];
#pragma unroll
      for (int k = 0; k < kTileDepth; k += 16) {
        if (first + k >= p_.depth) break;
        // Beyond a row's end comes the next one; beyond the last, a tile under way, which nobody may read.
        const bool is_half = first + k + 8 >= p_.depth;
        load_matrices(from + (first + k) * 2 + (is_half ? 0 : second_half), rows[k / 16]);
        if (is_half) rows[k / 16][2] = rows[k / 16][3] = 0;
      }
      fence(sums);
      begin_products();
#pragma unroll
      for (int k = 0; k < kTileDepth; k += 16) {
        if (first + k >= p_.depth) break;
        multiply<kWeightDepthFirst>(sums, rows[k / 16], describe_weight(step, k), first + k == 0, T());
      }
      commit_products();
      fence(sums);
      wait_for_products<0>();  // which read these registers
      fence(sums);
    }
  }

  /// To shared memory. Of the last tile some rows may not exist: they go no further.
  FUSEDSC_DEVICE void store_tile(Sums& sums, int tile, Part& epilogue) const {
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
    constexpr bool kExists[2] = {true, true};  // asked only where positions are summed up
    const int slot = tile % kInputs * kTileRows * out_pitch_ + row * out_pitch_ + lane % 4 * 4;
    unsigned char* to = out_ + (thread_ / 32 * 16 + lane % 16) * out_pitch_ + lane / 16 * 16;
#pragma unroll
    for (int run = 0; run < kChannels / 8; run += 2) {
      if (run * 8 >= p_.channels) break;
      const bool is_half = run * 8 + 8 >= p_.channels;
      // Two positions of the pair in 8 channels, then of that in the next 8.
      float(&values)[8] = *reinterpret_cast<float(*)[8]>(sums + run * 4);
      std::uint32_t words[4], x[4], added[4];  // x: of gradients only
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int place = slot + i % 2 * 8 * out_pitch_ + (is_half ? run : run + i / 2) * 16;
        if (has_added_) added[i] = *reinterpret_cast<const std::uint32_t*>(added_ + place);
      }
      epilogue.take(run * 8, kExists, values, x, added);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(values[2 * i], values[2 * i + 1], T());
      store_matrices(is_half && lane >= 16 ? spare_ + (thread_ / 32 * 16 + lane % 16) * 16 : to + run * 16, words);
    }
  }

  const PointwiseParameters& p_;
  int group_, thread_, split_, steps_, tiles_, in_pitch_, out_pitch_, stage_bytes_;
  bool is_leader_, has_added_;
  unsigned char *weight_, *stages_, *out_, *added_, *spare_;
  Barrier *barriers_, *weight_barrier_;
  float* vectors_;
};

}  // namespace fusedsc::gpu::hopper
