/// Pointwise convolution on Hopper GPUs, weight and bias gradients: the sum over all positions is cut twice, among
/// blocks and among each block's warpgroups, which go their own ways through their positions. Blocks that
/// share a tile of the weight run as a cluster and add their sums through shared memory; if more than a cluster share
/// one, a second kernel adds the clusters' sums (pointwise_hopper_weight_sum.h).
///
/// The gradient prologue is linear, so it is applied to sums instead of elements: of grad_y*a, of output*a, and of a,
/// which also keeps its results from being rounded to 16 bits. Sums of a single tensor are products with ones.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_parameters.h"
#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/common/gpu/hopper/hopper_products.h"
#include "fusedsc/common/gpu/hopper/hopper_stages.h"
#include "fusedsc/common/gpu/sums/item_work.h"

namespace fusedsc::gpu::hopper {

/// Rows are outputs, in blocks of 64; columns are channels. A group takes kDepth positions at a time.
template <class T, PointwiseWeightKind kKind_, int kRowBlocks, int kColumns_, int kGroups_, int kDepth_>
class PointwiseWeightProduct {
 public:
  static constexpr PointwiseWeightKind kKind = kKind_;
  static constexpr int kRows = kRowBlocks * 64, kColumns = kColumns_, kGroups = kGroups_, kDepth = kDepth_;
  static constexpr int kThreads = kGroups * 128;

  static constexpr int memory_bytes(int stages) {
    const int tiles = kGroups * stages * kStageBytes;
    return 1024 + (tiles > kSumBytes ? tiles : kSumBytes) + barrier_bytes(stages) + kVectorFloats * 4;
  }

  FUSEDSC_DEVICE static void run(const PointwiseWeightParameters& p) {
    PointwiseWeightProduct product(p);
    product.loop();
  }

 private:
  static constexpr bool kFused = kKind != PointwiseWeightKind::plain, kBias = kKind == PointwiseWeightKind::bias;
  static constexpr int kParts = kFused ? 2 : 1;  ///< grad_y; output
  /// Columns of a product instruction, and of a copy.
  static constexpr int kWide = kColumns % 64 == 0 ? 64 : 32, kColumnBlocks = kColumns / kWide;
  static constexpr int kRowTileBytes = kDepth * 128, kXRowBytes = kWide * 2, kXTileBytes = kDepth * kXRowBytes;
  static constexpr int kPartBytes = kRowBlocks * kRowTileBytes;
  static constexpr int kStageBytes = kColumnBlocks * kXTileBytes + kParts * kPartBytes;
  static_assert(kColumns % kWide == 0 && kGroups > 1);

  // Sums go through shared memory in fours, of which each group owns some, as threads have them.
  static constexpr int kQuads = kRowBlocks * kColumns / 8, kOwnQuads = (kQuads + kGroups - 1) / kGroups;
  static constexpr int kSumBytes = kGroups * (kGroups - 1) * kOwnQuads * 128 * 16;

  // Vectors in shared memory: ones; by channel scale, shift and sums of each group; by output three scales and the
  // bias.
  static constexpr int kScales = 128, kChannelSums = kScales + 2 * kColumns;
  static constexpr int kOutputScales = kChannelSums + kGroups * kColumns, kBiasSums = kOutputScales + 3 * kRows;
  static constexpr int kVectorFloats = !kFused ? 0 : kBiasSums + (kBias ? (kGroups + 1) * kRows : 0);

  using Result = float[kRowBlocks][kColumnBlocks][kWide / 2];

  struct Sums {
    Result products[kParts];
    float of_channels[kFused ? kColumnBlocks : 1][4], of_rows[kParts][kBias ? kRowBlocks : 1][4];
  };

  FUSEDSC_HOST_DEVICE static constexpr int barrier_bytes(int stages) { return (kGroups * stages * 8 + 15) / 16 * 16; }

  FUSEDSC_DEVICE explicit PointwiseWeightProduct(const PointwiseWeightParameters& p) : p_(p) {
    group_ = uniform(thread_index() / 128);
    thread_ = thread_index() % 128;
    int rest = static_cast<int>(block_index());
    rank_ = rest % p.cluster;
    rest /= p.cluster;
    tile_ = rest % (p.tiles.output_tiles * p.tiles.channel_tiles);
    split_ = rest / (p.tiles.output_tiles * p.tiles.channel_tiles);
    first_channel_ = tile_ % p.tiles.channel_tiles * kColumns;
    first_output_ = tile_ / p.tiles.channel_tiles * kRows;
    first_step_ = (split_ * p.cluster + rank_) * kGroups + group_;
    stride_ = p.splits * p.cluster * kGroups;
    steps_ = first_step_ < p.pixel_tiles ? (p.pixel_tiles - first_step_ + stride_ - 1) / stride_ : 0;

    auto* memory = static_cast<unsigned char*>(shared_memory());
    memory += padding_before_tiles(memory);
    quads_ = reinterpret_cast<Four*>(memory);
    stages_ = memory + group_ * p.stages * kStageBytes;
    const int tiles = kGroups * p.stages * kStageBytes;
    memory += tiles > kSumBytes ? tiles : kSumBytes;
    barriers_ = reinterpret_cast<Barrier*>(memory) + group_ * p.stages;
    vectors_ = reinterpret_cast<float*>(memory + barrier_bytes(p.stages));
  }

  FUSEDSC_DEVICE void loop() {
    if (thread_ == 0) {
      if (group_ == 0) {
        prefetch(p_.x);
        prefetch(p_.grad_y);
        if (kFused) prefetch(p_.output);
      }
      for (int i = 0; i < p_.stages; ++i) initialise(barriers_ + i);
      publish();
    }
    if (!p_.runs_beside_input) wait_for_previous_kernel();
    if (thread_ == 0) {
      for (int i = 0; i < p_.stages; ++i) start_next(i);
    }
    if constexpr (kFused) read_vectors();
    block_barrier();
    StageTurn turn;
    int last_slot = -1;
    Sums sums = {};
#pragma unroll 1
    for (int step = 0; step < steps_; ++step) {
      wait(barriers_ + turn.slot, turn.parity);
      if constexpr (kFused) {
        if (p_.has_prologue) {
          change_x(turn.slot, p_.pixels - (first_step_ + step * stride_) * kDepth);
          publish();
        }
        group_barrier(group_);
        multiply_tiles(sums, turn.slot);
        wait_for_products<0>();  // here, or the compiler would not let them run asynchronously
        fence_all(sums);
        group_barrier(group_);
        if (thread_ == 0) start_next(turn.slot);
      } else {
        multiply_tiles(sums, turn.slot);
        if (last_slot >= 0) {
          wait_for_products<1>();
          group_barrier(group_);
          if (thread_ == 0) start_next(last_slot);
        }
      }
      last_slot = turn.slot;
      turn.next(p_.stages);
    }
    wait_for_products<0>();
    fence_all(sums);
    if (p_.runs_beside_input) wait_for_previous_kernel();  // so that whoever waits for this one waits for both
    let_next_kernel_start();
    if constexpr (kFused) apply_gradient_prologue(sums);
    if constexpr (kBias) leave_bias(sums);
    block_barrier();  // all groups are done with the tiles, where the sums go
    leave(sums.products[0]);
  }

  // --------------------------------------------------------------------------------- by the leader of a group of warps

  FUSEDSC_DEVICE void start_next(int slot) {
    if (next_step_ >= steps_) return;
    unsigned char* to = stages_ + slot * kStageBytes;
    Barrier* barrier = barriers_ + slot;
    const int pixel = (first_step_ + next_step_ * stride_) * kDepth;
    expect(barrier, kStageBytes);
    for (int i = 0; i < kColumnBlocks; ++i, to += kXTileBytes) {
      start_load(to, p_.x, first_channel_ + i * kWide, pixel, barrier);
    }
    for (int i = 0; i < kRowBlocks; ++i, to += kRowTileBytes) {
      start_load(to, p_.grad_y, first_output_ + i * 64, pixel, barrier);
      if (kFused) start_load(to + kPartBytes, p_.output, first_output_ + i * 64, pixel, barrier);
    }
    ++next_step_;
  }

  // ----------------------------------------------------------------------------------------- by all threads of a group

  FUSEDSC_DEVICE static void fence_all(Sums& sums) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
        fence(sums.products[part][i]);
        if constexpr (kBias) fence(sums.of_rows[part][i]);
      }
    }
    if constexpr (kFused) fence(sums.of_channels);
  }

  FUSEDSC_DEVICE void multiply_tiles(Sums& sums, int slot) const {
    const unsigned char* tile = stages_ + slot * kStageBytes;
    const std::uint64_t x = describe<kXRowBytes>(tile), rows = describe<128>(tile + kColumnBlocks * kXTileBytes),
                        ones = describe_constant(vectors_);
    fence_all(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      const std::uint64_t x_step = x + k * kXRowBytes / 16, rows_step = rows + k * 128 / 16;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i) {
          const std::uint64_t row = rows_step + (part * kPartBytes + i * kRowTileBytes) / 16;
#pragma unroll
          for (int j = 0; j < kColumnBlocks; ++j) {
            multiply<true, true>(sums.products[part][i][j], row, x_step + j * kXTileBytes / 16, false, T());
          }
          if constexpr (kBias) multiply<false, true>(sums.of_rows[part][i], row, ones, false, T());
        }
      }
      if constexpr (kFused) {
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          multiply<false, true>(sums.of_channels[j], x_step + j * kXTileBytes / 16, ones, false, T());
        }
      }
    }
    commit_products();
    fence_all(sums);
  }

  FUSEDSC_DEVICE void read_vectors() {
    for (int i = thread_index(); i < kScales; i += kThreads) {
      reinterpret_cast<std::uint32_t*>(vectors_)[i] = to_bits(1.0f, 1.0f, T());
    }
    publish();
    for (int c = thread_index(); c < kColumns; c += kThreads) {
      const int channel = first_channel_ + c;
      const bool has = channel < p_.tiles.channels;
      vectors_[kScales + c] = has && p_.scale != nullptr ? p_.scale[channel] : 1.0f;
      vectors_[kScales + kColumns + c] = has && p_.shift != nullptr ? p_.shift[channel] : 0.0f;
    }
    float* vectors = vectors_ + kOutputScales;
    for (int row = thread_index(); row < kRows; row += kThreads) {
      const int output = first_output_ + row;
      const bool has = output < p_.tiles.outputs;
      vectors[row] = has && p_.grad_scale != nullptr ? p_.grad_scale[output] : 1.0f;
      vectors[kRows + row] = has && p_.output_scale != nullptr ? p_.output_scale[output] : 0.0f;
      vectors[2 * kRows + row] = has && p_.offset != nullptr ? p_.offset[output] : 0.0f;
    }
  }

  /// The prologue, where x lies. Each thread has a run of channels, of every 16th (or 32nd) position. There are
  /// `pixels` of them; beyond the end it leaves zeros.
  FUSEDSC_DEVICE void change_x(int slot, int pixels) const {
    using Run = Aligned<std::uint32_t, 4>;
    constexpr int kRunsOfRow = kWide / 8, kRowsAtOnce = 128 / kRunsOfRow;
    const int run = thread_ % kRunsOfRow, row = thread_ / kRunsOfRow;
    const bool is_clamp = p_.activation == Activation::relu || p_.activation == Activation::relu6;
    const bool to_six = p_.activation == Activation::relu6;
    const bool is_other = !is_clamp && p_.activation != Activation::identity;
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      unsigned char* tile = stages_ + slot * kStageBytes + block * kXTileBytes;
      float scale[8], shift[8];
      const float* coefficients = vectors_ + kScales + block * kWide + run * 8;
      load<4>(coefficients).widen(scale);
      load<4>(coefficients + 4).widen(scale + 4);
      load<4>(coefficients + kColumns).widen(shift);
      load<4>(coefficients + kColumns + 4).widen(shift + 4);
      Run values[kDepth / kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kDepth / kRowsAtOnce; ++i) {
        values[i] = *reinterpret_cast<const Run*>(tile + place_of_run<kXRowBytes>(row + i * kRowsAtOnce, run));
      }
#pragma unroll
      for (int i = 0; i < kDepth / kRowsAtOnce; ++i) {
        std::uint32_t(&words)[4] = values[i].elements;
        float z[8];
#pragma unroll
        for (int v = 0; v < 4; ++v) to_floats(words[v], z[2 * v], z[2 * v + 1], T());
#pragma unroll
        for (int v = 0; v < 8; ++v) z[v] = z[v] * scale[v] + shift[v];
        if (is_other) activate(p_.activation, z);
        const bool exists = row + i * kRowsAtOnce < pixels;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          words[v] = to_bits(z[2 * v], z[2 * v + 1], T());
          if (is_clamp) words[v] = clamped_pair(words[v], to_six, T());
          if (!exists) words[v] = 0;
        }
        *reinterpret_cast<Run*>(tile + place_of_run<kXRowBytes>(row + i * kRowsAtOnce, run)) = values[i];
      }
    }
  }

  /// products[0] = what the gradient prologue makes of the sums.
  FUSEDSC_DEVICE void apply_gradient_prologue(Sums& sums) const {
    const int lane = thread_ % 32, row = thread_ / 32 * 16 + lane / 4;
    float* channel_sums = vectors_ + kChannelSums + group_ * kColumns;
#pragma unroll
    for (int block = 0; block < kColumnBlocks; ++block) {
      if (lane % 4 != 0 || row >= kWide) continue;
      channel_sums[block * kWide + row] = sums.of_channels[block][0];
      channel_sums[block * kWide + row + 8] = sums.of_channels[block][2];
    }
    group_barrier(group_);
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      float grad_scale[2], output_scale[2], offset[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* from = vectors_ + kOutputScales + row + i * 64 + half * 8;
        grad_scale[half] = from[0];
        output_scale[half] = from[kRows];
        offset[half] = from[2 * kRows];
      }
#pragma unroll
      for (int c = 0; c < kColumns; c += 8) {
        const auto channel = *reinterpret_cast<const Aligned<float, 2>*>(channel_sums + c + lane % 4 * 2);
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          float& sum = sums.products[0][i][c / kWide][c % kWide / 2 + v];
          const float other = sums.products[kParts - 1][i][c / kWide][c % kWide / 2 + v];
          sum = sum * grad_scale[v / 2] + (other * output_scale[v / 2] + channel.elements[v % 2] * offset[v / 2]);
        }
      }
    }
  }

  /// The group's share, to shared memory.
  FUSEDSC_DEVICE void leave_bias(const Sums& sums) const {
    const int lane = thread_ % 32;
    if (lane % 4 != 0) return;
    int pixels = 0;
    for (int step = 0; step < steps_; ++step) {
      pixels += least(p_.pixels - (first_step_ + step * stride_) * kDepth, kDepth);
    }
#pragma unroll
    for (int i = 0; i < 2 * kRowBlocks; ++i) {
      const int row = thread_ / 32 * 16 + lane / 4 + i / 2 * 64 + i % 2 * 8;
      const float* scales = vectors_ + kOutputScales + row;
      vectors_[kBiasSums + group_ * kRows + row] =
          sums.of_rows[0][i / 2][i % 2 * 2] * scales[0] +
          (sums.of_rows[kParts - 1][i / 2][i % 2 * 2] * scales[kRows] + static_cast<float>(pixels) * scales[2 * kRows]);
    }
  }

  // ------------------------------------------------------------------------------------------- by all threads of a
  // block

  FUSEDSC_DEVICE static const float* of_quad(const Result& sums, int quad) {
    const int column = quad % (kColumns / 8) * 8;
    return sums[quad / (kColumns / 8)][column / kWide] + column % kWide / 2;
  }

  FUSEDSC_DEVICE void leave(const Result& sums) {
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kGroups == group_ || !exists(quad)) continue;
      const float* from = of_quad(sums, quad);
      *place_of(quad, group_) = {from[0], from[1], from[2], from[3]};
    }
    block_barrier();
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad % kGroups != group_ || !exists(quad)) continue;
      const float* from = of_quad(sums, quad);
      Four sum = {from[0], from[1], from[2], from[3]};
#pragma unroll
      for (int i = 1; i < kGroups; ++i) add(sum, *place_of(quad, quad % kGroups + i));
      if (p_.cluster == 1) leave_four(p_.tiles, tile_, split_, quad * 128 + thread_, sum, T());
      else *place_of(quad, quad % kGroups + 1) = sum;
    }
    float bias = 0;
    const bool has_bias = kBias && first_channel_ == 0 && thread_index() < kRows;
    const int output = first_output_ + thread_index();
    if (has_bias) {
      for (int group = 0; group < kGroups; ++group) bias += vectors_[kBiasSums + group * kRows + thread_index()];
      if (p_.cluster == 1) leave_bias_of(p_.tiles, split_, output, bias, T());
      else vectors_[kBiasSums + kGroups * kRows + thread_index()] = bias;
    }
    if (p_.cluster == 1) return;
    cluster_barrier();
#pragma unroll 1
    for (int quad = rank_ * kGroups + group_; quad < kQuads; quad += p_.cluster * kGroups) {
      if (!exists(quad)) continue;
      const Four* place = place_of(quad, quad % kGroups + 1);
      Four sum = load_of_block(place, 0);
#pragma unroll 4
      for (int rank = 1; rank < p_.cluster; ++rank) add(sum, load_of_block(place, rank));
      leave_four(p_.tiles, tile_, split_, quad * 128 + thread_, sum, T());
    }
    if (has_bias && rank_ == 0) {
      const float* place = vectors_ + kBiasSums + kGroups * kRows + thread_index();
      for (int rank = 1; rank < p_.cluster; ++rank) bias += load_of_block(place, rank);
      leave_bias_of(p_.tiles, split_, output, bias, T());
    }
    cluster_barrier();  // no block's memory goes before all have read it
  }

  FUSEDSC_DEVICE bool exists(int quad) const {
    return first_channel_ + quad % (kColumns / 8) * 8 < p_.tiles.channels &&
           first_output_ + quad / (kColumns / 8) * 64 + thread_ / 32 * 16 < p_.tiles.outputs;
  }

  /// Where `group` leaves a quad for the one that owns it.
  FUSEDSC_DEVICE Four* place_of(int quad, int group) const {
    const int owner = quad % kGroups, number = (group - owner - 1 + kGroups) % kGroups;
    return quads_ + ((owner * (kGroups - 1) + number) * kOwnQuads + quad / kGroups) * 128 + thread_;
  }

  const PointwiseWeightParameters& p_;
  int group_, thread_, rank_, tile_, split_, first_output_, first_channel_;
  int first_step_, stride_, steps_, next_step_ = 0;  ///< next_step_: what the leader copies next
  unsigned char* stages_;
  Barrier* barriers_;
  Four* quads_;
  float* vectors_;
};

}  // namespace fusedsc::gpu::hopper
