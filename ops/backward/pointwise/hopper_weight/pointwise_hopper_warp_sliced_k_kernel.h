/// Pointwise weight gradients on Hopper GPUs, of float32 by TensorFloat-32 in either layout, and of contiguous 16-bit
/// tensors: slices of warps go their own ways through the positions, each with stages of its own that TMA
/// fills, and with sums of a whole tile of the weight, of which each warp of a slice has a part. A block's slices add
/// their sums up at the end; if several blocks share a tile, a second kernel adds theirs
/// (pointwise_hopper_weight_sum.h).
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_warp_sliced_k_operand.h"
#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

struct WarpSlicedKParameters {
  TensorMap grad_y, output, x;
  int steps = 0;        ///< tiles of positions
  int image_steps = 1;  ///< of an image; channels inner: all
  Divisor by_image_steps;
  int positions = 0;  ///< of an image; channels inner: all
  int phases = 1;     ///< channels that are a row to TMA (pointwise_hopper_warp_sliced_k_operand.h)
  int stages = 2;     ///< that each slice has
  int splits = 1;     ///< blocks that share a tile of the weight
  // Of grad_y: grad_scale*grad_y + output_scale*output + offset. Of x: activation(scale*x + shift).
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const float *scale = nullptr, *shift = nullptr;
  Activation activation = Activation::identity;
  SliceTiles tiles;
};

/// Rows are outputs, columns are channels. A warp has kRowBlocks * 32 rows and kColumnBlocks * 32 columns, a slice
/// kSliceRows by kSliceColumns warps; kDepth positions come at a time.
template <class T_, WarpSlicedKRows kTileRows_, bool kFused_, int kRowBlocks, int kColumnBlocks, int kSliceRows,
          int kSliceColumns, int kSlices_, int kDepth_>
class WarpSlicedKProduct {
 public:
  using T = T_;
  static constexpr WarpSlicedKRows kTileRows = kTileRows_;
  static constexpr bool kFused = kFused_;
  static constexpr int kRows = kRowBlocks * 32 * kSliceRows, kColumns = kColumnBlocks * 32 * kSliceColumns;
  static constexpr int kSlices = kSlices_, kDepth = kDepth_;
  static constexpr int kSliceThreads = kSliceRows * kSliceColumns * 32, kThreads = kSlices * kSliceThreads;
  static constexpr SliceShape kShape{kRowBlocks, kColumnBlocks, kSliceColumns, kSliceThreads};

  static constexpr int memory_bytes(int stages) {
    const int tiles = kSlices * stages * kStageBytes;
    return 1024 + (tiles > kSumBytes ? tiles : kSumBytes) + barrier_bytes(stages) + kVectors * 4;
  }

  FUSEDSC_DEVICE static void run(const WarpSlicedKParameters& p) {
    WarpSlicedKProduct product(p);
    product.loop();
  }

 private:
  static constexpr bool kChannelsInner = kTileRows == WarpSlicedKRows::channels;
  using RowOperand = WarpSlicedKOperand<T, kTileRows, kRowBlocks, kRows, kDepth>;
  using ColumnOperand = WarpSlicedKOperand<T, kTileRows, kColumnBlocks, kColumns, kDepth>;
  static constexpr int kOutputAt = RowOperand::kBytes, kXAt = (kFused ? 2 : 1) * RowOperand::kBytes;
  static constexpr int kStageBytes = kXAt + ColumnOperand::kBytes;
  static constexpr int kProducts = RowOperand::kWords / 2;  ///< of a group of positions

  // Sums go through shared memory in fours, of which each slice puts some together.
  static constexpr int kFours = 8 * kRowBlocks * kColumnBlocks, kSumBytes = kFours * kThreads * 16;

  // Vectors in shared memory: scale and shift of x, three of grad_y.
  static constexpr int kGradVectors = 2 * kColumns, kVectors = kFused ? kGradVectors + 3 * kRows : 0;

  using Sums = float[kRowBlocks][2][kColumnBlocks * 4][4];

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) { return (kSlices * stages * 8 + 15) / 16 * 16; }

  FUSEDSC_DEVICE explicit WarpSlicedKProduct(const WarpSlicedKParameters& p)
      : p_(p),
        slice_(uniform(thread_index() / kSliceThreads)),
        warp_(uniform(thread_index() % kSliceThreads / 32)),
        rows_(warp_ / kSliceColumns * kRowBlocks * 32, p.phases, p.positions),
        columns_(warp_ % kSliceColumns * kColumnBlocks * 32, p.phases, p.positions) {
    const int tiles = p.tiles.output_tiles * p.tiles.channel_tiles, block = static_cast<int>(block_index());
    tile_ = block % tiles;
    split_ = block / tiles;
    first_channel_ = tile_ % p.tiles.channel_tiles * kColumns;
    first_output_ = tile_ / p.tiles.channel_tiles * kRows;
    stride_ = p.splits * kSlices;
    step_ = next_step_ = split_ * kSlices + slice_;
    is_leader_ = thread_index() % kSliceThreads == 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    fours_ = reinterpret_cast<Four*>(memory);
    stages_ = memory + slice_ * p.stages * kStageBytes;
    const int bytes = kSlices * p.stages * kStageBytes;
    memory += bytes > kSumBytes ? bytes : kSumBytes;
    barriers_ = reinterpret_cast<Barrier*>(memory) + slice_ * p.stages;
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE void loop() {
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      prefetch(p_.x);
      prefetch(p_.grad_y);
      publish();
    }
    wait_for_previous_kernel();
    if (is_leader_) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    if constexpr (kFused) {
      read_vectors();
    }
    block_barrier();
    Sums sums = {};
    StageTurn turn;
#pragma unroll 1
    for (; step_ < p_.steps; step_ += stride_) {
      wait(barriers_ + turn.slot, turn.parity);
      multiply(sums, stages_ + turn.slot * kStageBytes);
      slice_barrier();
      if (is_leader_) start_next(turn.slot);
      turn.next(p_.stages);
    }
    let_next_kernel_start();
    block_barrier();  // all slices are done with the tiles, where the sums go
    leave(sums);
  }

  FUSEDSC_DEVICE void slice_barrier() const {
    if constexpr (kSliceThreads == 32) warp_barrier();
    else group_barrier<kSliceThreads>(slice_);
  }

  // ------------------------------------------------------------------------------------------- by a slice's leader

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_step_ >= p_.steps) return;
    unsigned char* to = stages_ + slot * kStageBytes;
    Barrier* barrier = barriers_ + slot;
    auto position = static_cast<std::uint32_t>(next_step_);
    const int image = kChannelsInner ? 0 : static_cast<int>(p_.by_image_steps.divide(position));
    const int first = static_cast<int>(position) * kDepth;
    expect(barrier, kStageBytes);
    start_loads<kRows>(to, p_.grad_y, first_output_, first, image, barrier);
    if (kFused) start_loads<kRows>(to + kOutputAt, p_.output, first_output_, first, image, barrier);
    start_loads<kColumns>(to + kXAt, p_.x, first_channel_, first, image, barrier);
    next_step_ += stride_;
  }

  template <int kChannels>
  FUSEDSC_DEVICE void start_loads(unsigned char* to, const TensorMap& map, int channel, int position, int image,
                                  Barrier* barrier) const {
    if constexpr (kChannelsInner) {
#pragma unroll
      for (int i = 0; i < kChannels; i += 32) {
        start_load(to + i * kDepth * 4, map, {channel + i, position, 0, 0}, barrier);
      }
    } else {
      const int phases = kTileRows == WarpSlicedKRows::phases ? p_.phases : 1, rows = kChannels / phases;
      for (int phase = 0; phase < phases; ++phase) {
        const int first =
            phase * p_.positions + position - warp_sliced_k_shift<T>(phase, p_.positions) / static_cast<int>(sizeof(T));
        start_load(to + phase * rows * 128, map, {first, channel / phases, image, 0}, barrier);
      }
    }
  }

  // -------------------------------------------------------------------------------------------- by a slice's threads

  FUSEDSC_DEVICE void multiply(Sums& sums, const unsigned char* tile) const {
    auto step = static_cast<std::uint32_t>(step_);
    if (!kChannelsInner) p_.by_image_steps.divide(step);
    const int left = p_.positions - static_cast<int>(step) * kDepth, valid = left < kDepth ? left : kDepth;
    [[maybe_unused]] constexpr int kUnrolled =
        kTileRows == WarpSlicedKRows::phases ? 1 : RowOperand::kGroups;  // as registers allow
#pragma unroll kUnrolled
    for (int group = 0; group < RowOperand::kGroups; ++group) {
      if (!kChannelsInner && !RowOperand::has_positions(group, 0, valid)) break;
      // Behind a map are zeros, of which prologues make something else, or, where there are phases, anything.
      const bool masks =
          (kFused || kTileRows == WarpSlicedKRows::phases) && valid < (group + 1) * RowOperand::kGroupDepth;
      const Runs runs = runs_of(group);
      typename ColumnOperand::Words b;
#pragma unroll
      for (int block = 0; block < kColumnBlocks; ++block) {
        read(columns_, tile + kXAt, group, runs, block, b[block]);
        if constexpr (kFused) apply_prologue(block, b[block]);
        if (masks) ColumnOperand::mask(group, valid, b[block]);
        round_factors<T>(b[block]);
      }
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        typename RowOperand::BlockWords a;
        read(rows_, tile, group, runs, block, a);
        if constexpr (kFused) {
          typename RowOperand::BlockWords other;
          read(rows_, tile + kOutputAt, group, runs, block, other);
          apply_gradient_prologue(block, a, other);
        }
        if (masks) RowOperand::mask(group, valid, a);
        round_factors<T>(a);
#pragma unroll
        for (int product = 0; product < kProducts; ++product) {
          if (kTileRows == WarpSlicedKRows::phases && product > 0 && !RowOperand::has_positions(group, product, valid))
            break;
          multiply_block(sums[block], a, b, 2 * product);
        }
      }
    }
  }

  struct NoRuns {};
  using Runs = std::conditional_t<kTileRows == WarpSlicedKRows::phases, WarpSlicedKPhaseRuns<T>, NoRuns>;

  FUSEDSC_DEVICE Runs runs_of(int group) const {
    if constexpr (kTileRows == WarpSlicedKRows::phases) return Runs(group, p_.phases, p_.positions);
    else return {};
  }

  template <class Operand>
  FUSEDSC_DEVICE static void read(const Operand& operand, const unsigned char* tile, int group, const Runs& runs,
                                  int block, typename Operand::BlockWords& to) {
    if constexpr (kTileRows == WarpSlicedKRows::phases) operand.read(tile, runs, block, to);
    else operand.read(tile, group, block, to);
  }

  FUSEDSC_DEVICE static void multiply_block(float (&sums)[2][kColumnBlocks * 4][4],
                                            const typename RowOperand::BlockWords& a,
                                            const typename ColumnOperand::Words& b, int word) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t rows[4] = {a[2 * i][word], a[2 * i + 1][word], a[2 * i][word + 1], a[2 * i + 1][word + 1]};
#pragma unroll
      for (int j = 0; j < 4 * kColumnBlocks; ++j) {
        const std::uint32_t columns[2] = {b[j / 4][j % 4][word], b[j / 4][j % 4][word + 1]};
        if constexpr (std::is_same_v<T, float>) wave_multiply_add_tf32(sums[i][j], rows, columns);
        else wave_multiply_add(sums[i][j], {{rows[0], rows[1], rows[2], rows[3]}, {columns[0], columns[1]}}, T());
      }
    }
  }

  FUSEDSC_DEVICE void read_vectors() {
    for (int c = thread_index(); c < kColumns; c += kThreads) {
      const int channel = first_channel_ + c;
      const bool has = channel < p_.tiles.channels;
      vectors_[c] = has && p_.scale != nullptr ? p_.scale[channel] : 1.0f;
      vectors_[kColumns + c] = has && p_.shift != nullptr ? p_.shift[channel] : 0.0f;
    }
    float* vectors = vectors_ + kGradVectors;
    for (int row = thread_index(); row < kRows; row += kThreads) {
      const int output = first_output_ + row;
      const bool has = output < p_.tiles.outputs;
      vectors[row] = has && p_.grad_scale != nullptr ? p_.grad_scale[output] : 1.0f;
      vectors[kRows + row] = has && p_.output_scale != nullptr ? p_.output_scale[output] : 0.0f;
      vectors[2 * kRows + row] = has && p_.offset != nullptr ? p_.offset[output] : 0.0f;
    }
  }

  FUSEDSC_DEVICE void apply_prologue(int block, typename ColumnOperand::BlockWords& words) const {
    const float* coefficients = vectors_ + (warp_ % kSliceColumns * kColumnBlocks + block) * 32 + columns_.base();
    float scale[4], shift[4];
    load<4>(coefficients).widen(scale);
    load<4>(coefficients + kColumns).widen(shift);
    FactorValues<T, ColumnOperand::kWords> z;
    to_values<T>(words, z);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (float& value : z[j]) value = value * scale[j] + shift[j];
    }
    activate(p_.activation, reinterpret_cast<float(&)[sizeof z / 4]>(z));
    to_words<T>(z, words);
  }

  FUSEDSC_DEVICE void apply_gradient_prologue(int block, typename RowOperand::BlockWords& words,
                                              const typename RowOperand::BlockWords& others) const {
    const float* coefficients =
        vectors_ + kGradVectors + (warp_ / kSliceColumns * kRowBlocks + block) * 32 + rows_.base();
    float grad_scale[4], output_scale[4], offset[4];
    load<4>(coefficients).widen(grad_scale);
    load<4>(coefficients + kRows).widen(output_scale);
    load<4>(coefficients + 2 * kRows).widen(offset);
    FactorValues<T, RowOperand::kWords> z, other;
    to_values<T>(words, z);
    to_values<T>(others, other);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof z[j] / 4); ++i) {
        z[j][i] = z[j][i] * grad_scale[j] + (other[j][i] * output_scale[j] + offset[j]);
      }
    }
    to_words<T>(z, words);
  }

  // ------------------------------------------------------------------------------------------- by all threads of a
  // block

  /// Four neighbouring columns of a row, in the order of SliceTiles::place_of.
  FUSEDSC_DEVICE static Four of_four(const Sums& sums, int four) {
    const int row = four / (2 * kColumnBlocks), run = four % (2 * kColumnBlocks);
    Four result;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      result.elements[j] = sums[row / 4][row / 2 % 2][run / 2 * 4 + j][row % 2 * 2 + run % 2];
    }
    return result;
  }

  /// Through shared memory, and then in a loop: unrolled, it would be most of the kernel, and come from memory.
  FUSEDSC_DEVICE void leave(const Sums& sums) const {
#pragma unroll
    for (int four = 0; four < kFours; ++four) *place_of(four, slice_) = of_four(sums, four);
    if constexpr (kSlices > 1) block_barrier();
#pragma unroll 1
    for (int four = slice_; four < kFours; four += kSlices) {
      Four sum = *place_of(four, 0);
#pragma unroll
      for (int slice = 1; slice < kSlices; ++slice) add(sum, *place_of(four, slice));
      leave_four(p_.tiles, tile_, split_, four * kSliceThreads + thread_index() % kSliceThreads, sum, T());
    }
  }

  FUSEDSC_DEVICE Four* place_of(int four, int slice) const {
    return fours_ + (slice * kFours + four) * kSliceThreads + thread_index() % kSliceThreads;
  }

  const WarpSlicedKParameters& p_;
  int slice_, warp_;
  RowOperand rows_;
  ColumnOperand columns_;
  int tile_, split_, first_output_, first_channel_;
  int step_, next_step_, stride_;  ///< next_step_: what the leader copies next
  bool is_leader_;
  unsigned char* stages_;
  Barrier* barriers_;
  Four* fours_;
  float* vectors_;
};

}  // namespace fusedsc::gpu::hopper
