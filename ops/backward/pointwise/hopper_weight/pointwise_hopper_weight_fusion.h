/// Both prologues of the weight gradient on Hopper GPUs, and the bias gradient: by each group of its own positions
/// (pointwise_hopper_weight_kernel.h).
///
/// The gradient prologue is linear, so it is applied to sums instead of elements: of grad_y*a, of output*a, and of a,
/// which also keeps its results from being rounded to 16 bits.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_block.h"
#include "fusedsc/common/gpu/sums/item_work.h"

namespace fusedsc::gpu::hopper {

template <class Block>
class PointwiseWeightFusion {
 public:
  FUSEDSC_DEVICE explicit PointwiseWeightFusion(const Block& block) : b_(block), p_(block.p) {}

  FUSEDSC_DEVICE void read_vectors() const {
    for (int i = thread_index(); i < Block::kScales; i += Block::kThreads) {
      reinterpret_cast<std::uint32_t*>(b_.vectors)[i] = to_bits(1.0f, 1.0f, T());
    }
    publish();
    for (int c = thread_index(); c < kColumns; c += Block::kThreads) {
      const int channel = b_.first_channel + c;
      const bool has = channel < p_.tiles.channels;
      b_.vectors[Block::kScales + c] = has && p_.scale != nullptr ? p_.scale[channel] : 1.0f;
      b_.vectors[Block::kScales + kColumns + c] = has && p_.shift != nullptr ? p_.shift[channel] : 0.0f;
    }
    float* vectors = b_.vectors + Block::kOutputScales;
    for (int row = thread_index(); row < kRows; row += Block::kThreads) {
      const int output = b_.first_output + row;
      const bool has = output < p_.tiles.outputs;
      vectors[row] = has && p_.grad_scale != nullptr ? p_.grad_scale[output] : 1.0f;
      vectors[kRows + row] = has && p_.output_scale != nullptr ? p_.output_scale[output] : 0.0f;
      vectors[2 * kRows + row] = has && p_.offset != nullptr ? p_.offset[output] : 0.0f;
    }
  }

  /// The prologue, where x lies. Each thread has a run of channels, of every 16th (or 32nd) position. There are
  /// `pixels` of them; beyond the end it leaves zeros.
  FUSEDSC_DEVICE void change_x(unsigned char* x, int pixels) const {
    using Run = Aligned<std::uint32_t, 4>;
    constexpr int kRunsOfRow = kBox / 8, kRowsAtOnce = 128 / kRunsOfRow;
    const int run = b_.thread % kRunsOfRow, row = b_.thread / kRunsOfRow;
    const bool is_clamp = p_.activation == Activation::relu || p_.activation == Activation::relu6;
    const bool to_six = p_.activation == Activation::relu6;
    const bool is_other = !is_clamp && p_.activation != Activation::identity;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      unsigned char* tile = x + box * Block::kBoxBytes;
      float scale[8], shift[8];
      const float* coefficients = b_.vectors + Block::kScales + box * kBox + run * 8;
      load<4>(coefficients).widen(scale);
      load<4>(coefficients + 4).widen(scale + 4);
      load<4>(coefficients + kColumns).widen(shift);
      load<4>(coefficients + kColumns + 4).widen(shift + 4);
      Run values[Block::kDepth / kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < Block::kDepth / kRowsAtOnce; ++i) {
        values[i] = *reinterpret_cast<const Run*>(tile + place_of_run<Block::kBoxRowBytes>(row + i * kRowsAtOnce, run));
      }
#pragma unroll
      for (int i = 0; i < Block::kDepth / kRowsAtOnce; ++i) {
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
        *reinterpret_cast<Run*>(tile + place_of_run<Block::kBoxRowBytes>(row + i * kRowsAtOnce, run)) = values[i];
      }
    }
  }

  /// products[0] = what the gradient prologue makes of the sums.
  FUSEDSC_DEVICE void apply_gradient_prologue(typename Block::Sums& sums) const {
    const int lane = b_.thread % 32, row = b_.thread / 32 * 16 + lane / 4;
    float* channel_sums = b_.vectors + Block::kChannelSums + b_.group * kColumns;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      if (lane % 4 != 0 || row >= kBox) continue;
      channel_sums[box * kBox + row] = sums.of_channels[box][0];
      channel_sums[box * kBox + row + 8] = sums.of_channels[box][2];
    }
    group_barrier(b_.group);
#pragma unroll
    for (int i = 0; i < Block::kRowBlocks; ++i) {
      float grad_scale[2], output_scale[2], offset[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* from = b_.vectors + Block::kOutputScales + row + i * 64 + half * 8;
        grad_scale[half] = from[0];
        output_scale[half] = from[kRows];
        offset[half] = from[2 * kRows];
      }
#pragma unroll
      for (int c = 0; c < kColumns; c += 8) {
        const auto channel = *reinterpret_cast<const Aligned<float, 2>*>(channel_sums + c + lane % 4 * 2);
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          float& sum = sums.products[0][i][c / 2 + v];
          const float other = sums.products[kParts - 1][i][c / 2 + v];
          sum = sum * grad_scale[v / 2] + (other * output_scale[v / 2] + channel.elements[v % 2] * offset[v / 2]);
        }
      }
    }
  }

  /// The group's share, to shared memory.
  FUSEDSC_DEVICE void leave_bias(const typename Block::Sums& sums) const {
    const int lane = b_.thread % 32;
    if (lane % 4 != 0) return;
    int pixels = 0;
    for (int step = 0; step < b_.steps; ++step) pixels += least(p_.pixels - b_.first_pixel(step), Block::kDepth);
#pragma unroll
    for (int i = 0; i < 2 * Block::kRowBlocks; ++i) {
      const int row = b_.thread / 32 * 16 + lane / 4 + i / 2 * 64 + i % 2 * 8;
      const float* scales = b_.vectors + Block::kOutputScales + row;
      b_.vectors[Block::kBiasSums + b_.group * kRows + row] =
          sums.of_rows[0][i / 2][i % 2 * 2] * scales[0] +
          (sums.of_rows[kParts - 1][i / 2][i % 2 * 2] * scales[kRows] + static_cast<float>(pixels) * scales[2 * kRows]);
    }
  }

 private:
  using T = typename Block::T;
  static constexpr int kRows = Block::kRows, kColumns = Block::kColumns, kParts = Block::kParts;
  static constexpr int kBox = Block::kBox, kBoxes = Block::kBoxes;

  const Block& b_;
  const PointwiseWeightParameters& p_;
};

}  // namespace fusedsc::gpu::hopper
