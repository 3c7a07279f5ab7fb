/// Depthwise convolution on Hopper GPUs, forward, without fusion, 16 bits, channels neighbours in memory. Rows of
/// images come to shared memory by TMA, some ahead of their use, and finished rows leave by it.
///
/// Multiplied is by tensor cores: A has 16 patches of 8 columns of two channels, as they lie side by side in memory, B
/// the weights of a window's row, shifted by one column from each of 4 output columns to the next, each channel its
/// own. Elements go from shared memory to registers as they are, 8 channels at a time, and outputs back likewise:
/// there is nothing to exchange between threads. A row of A is in registers once and serves all output rows whose
/// windows cover it. Zeros times an infinity or a NaN in x make NaNs of a patch's other outputs, which is seen in
/// them: those are computed again, each from its own channel.
///
/// Each warp owns 8 channels, of 7x7 windows 4: no two warps touch the same elements of a tile, so that they wait for
/// copies only. What fuses anything is left to depthwise_hopper_kernel.h, but for a bias of 7x7 windows.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_block.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_weights.h"

namespace fusedsc::gpu::hopper {

/// As DepthwisePatchesBlock.
template <class T, int kKernel, int kStride, bool kInSegments, bool kFewRegisters>
class DepthwisePatches
    : DepthwisePatchesBlock<T, DepthwiseWindow<kKernel, kStride>, kInSegments, kFewRegisters, patches_pairs(kKernel)> {
 public:
  FUSEDSC_DEVICE static void run(const DepthwisePatchesParameters& p) {
    DepthwisePatches tiles(p);
    if (tiles.warp_ < p.warps()) tiles.compute();
    else tiles.copy();
  }

 private:
  using Block =
      DepthwisePatchesBlock<T, DepthwiseWindow<kKernel, kStride>, kInSegments, kFewRegisters, patches_pairs(kKernel)>;
  using Block::channel_, Block::kPairs, Block::outputs_, Block::p_;
  using typename Block::Sums;
  using Weights = std::conditional_t<kFewRegisters, DepthwisePackedWeights<T, kKernel, kStride>,
                                     DepthwisePatchesWeights<T, kKernel, kStride>>;
  static constexpr int kGroups = Weights::kGroups;       ///< of 4 columns that a patch of 4 outputs reads
  static constexpr int kKept = (kKernel - 1) / kStride;  ///< output rows that are begun and not finished

  FUSEDSC_DEVICE explicit DepthwisePatches(const DepthwisePatchesParameters& p) : Block(p) {}

  FUSEDSC_DEVICE void compute() {
    Block::clear_behind_tiles();
    const std::uint32_t places = Block::aim(4 * kStride, places_);
    group_barrier(0, p_.threads());
    weights_.load(p_, channel_, places, Block::weight_memory());
    outputs_.load_bias();
    Sums sums[kKept];
    begin_image(sums);
    Block::work_off([&](const DepthwiseTileNote& at, const unsigned char* tile, unsigned char* out) {
      // Rows of padding are passed over.
      int begin = 0, end = 0;
      const auto read_rows = [&] {
        begin = read_entry(at.begin);
        end = read_entry(at.end);
      };
      if constexpr (!kFewRegisters) read_rows();
      const int input_row = read_entry(at.input_row);
      const int inside = least(p_.rows, (p_.input_height - input_row + kStride - 1) / kStride * kStride);
      int row = read_entry(at.output_row), r = 0;
      if (input_row < 0 && p_.padding_top < kKernel) {
        r = least(-input_row / kStride * kStride, inside);
        begin_image(sums);
        tile += r * Block::row_bytes();
        out += r / kStride * p_.out_row_bytes;
        row += r / kStride;
      }
#pragma unroll 1
      for (; r < inside; r += kStride) {
#pragma unroll
        for (int phase = 0; phase < kStride; ++phase) {
          add_row(tile, phase, sums, out, row);
          tile += Block::row_bytes();
        }
        out += p_.out_row_bytes;
        ++row;
      }
      if constexpr (kFewRegisters) {
        if (r < p_.rows) read_rows();
      }
#pragma unroll 1
      for (; r < p_.rows; r += kStride) {
        pass_row(sums, out, row, row >= begin && row < end);
        out += p_.out_row_bytes;
        ++row;
      }
    });
  }

  /// A row of x, number `phase` of those that a row of outputs moves on by, to all rows of outputs that it belongs to.
  /// That which it completes goes to `out`.
  FUSEDSC_DEVICE void add_row(const unsigned char* row, int phase, Sums (&sums)[kKept], unsigned char* out,
                              int output_row) const {
    std::uint32_t operands[kPairs][4], last[kPairs][2];
    typename Block::Run runs[kGroups][2];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) Block::load_halves(row + places_[i], runs[i]);
    Block::sort(runs[0], 0, operands);
    Block::sort(runs[1], 2, operands);
    if constexpr (kGroups == 3) Block::sort(runs[2], 0, last);
    const auto fetched = weights_.fetch(phase);
    Sums finished;
#pragma unroll
    for (int age = kKept; age >= 0; --age) {
      const int kh = phase + age * kStride;
      if (kh >= kKernel) continue;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float sum[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          sum[v] = phase > 0 ? sums[age % kKept][pair][v] : age == 0 ? 0.0f : sums[age - 1][pair][v];
        }
        const std::uint32_t(&a)[4] = operands[pair];
        const auto weights = [&](int i) { return weights_.word(fetched, kh, pair, i); };
        wave_multiply_add(sum, {{a[0], a[1], a[2], a[3]}, {weights(0), weights(1)}}, T());
        if constexpr (kGroups == 3) wave_multiply_add_half(sum, last[pair], weights(2), T());
        float(&to)[4] = phase == 0 && age == kKept ? finished[pair] : sums[age % kKept][pair];
#pragma unroll
        for (int v = 0; v < 4; ++v) to[v] = sum[v];
      }
    }
    if (phase == 0) outputs_.finish(out, output_row, finished);
  }

  FUSEDSC_DEVICE static void begin_image(Sums (&sums)[kKept]) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) Block::clear(sums[i]);
  }

  /// Instead of add_row, of padding below an image: there is nothing to add, but maybe a row of outputs to finish.
  FUSEDSC_DEVICE void pass_row(Sums (&sums)[kKept], unsigned char* out, int output_row, bool exists) const {
    Sums finished;
#pragma unroll
    for (int i = 0; i < kPairs * 4; ++i) {
      const int pair = i / 4, v = i % 4;
      finished[pair][v] = sums[kKept - 1][pair][v];
#pragma unroll
      for (int age = kKept - 1; age > 0; --age) sums[age][pair][v] = sums[age - 1][pair][v];
      sums[0][pair][v] = 0;
    }
    if (exists) outputs_.finish(out, output_row, finished);
  }

  int places_[kGroups];  ///< of the thread, in tiles of x
  Weights weights_;
};

}  // namespace fusedsc::gpu::hopper
