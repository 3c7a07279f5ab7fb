/// Depthwise convolution of stride 2 on Hopper GPUs, input gradient alone, 3x3 and 5x5, 16 bits, channels neighbours in
/// memory: the forward kernel's way (forward/depthwise/hopper_patches/depthwise_hopper_patches_kernel.h), with windows
/// rotated by 180°. Of 4 columns of grad_x, windows have at most 4 columns of grad_y, which with two channels are a
/// product's depth. A row of grad_y belongs to as many rows of grad_x as a window has, two of which it completes.
#pragma once

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_block.h"

namespace fusedsc::gpu::hopper {

template <class T, int kKernel, bool kInSegments>
class DepthwiseInputPatches : DepthwisePatchesBlock<T, DepthwiseTransposedWindow<kKernel>, kInSegments> {
 public:
  FUSEDSC_DEVICE static void run(const DepthwisePatchesParameters& p) {
    DepthwiseInputPatches tiles(p);
    if (tiles.warp_ < p.warps()) tiles.compute();
    else tiles.copy();
  }

 private:
  using Window = DepthwiseTransposedWindow<kKernel>;
  using Block = DepthwisePatchesBlock<T, Window, kInSegments>;
  using Block::channel_, Block::kPairs, Block::outputs_, Block::p_;
  using typename Block::Sums;
  static constexpr int kKept = kKernel - 2;  ///< rows of grad_x that are begun and not finished

  FUSEDSC_DEVICE explicit DepthwiseInputPatches(const DepthwisePatchesParameters& p) : Block(p) {}

  /// When the kernel before has ended; `places`: what else is to be worked out before. Beyond the last channel they are
  /// zeros.
  FUSEDSC_DEVICE void load_weights(std::uint32_t places) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4, high = g % 2;
    const bool exists = channel_ < p_.channels;
    const T* weight = elements_of<T>(p_.weight) + (exists ? channel_ + high : 0) * p_.weight.image;
    const int kw = g / 2 + p_.padding_left - 2 * (t - Window::before(p_.padding_left));
    const bool is_tap = exists && kw >= 0 && kw < kKernel;
    weight += (is_tap ? kw : 0) * static_cast<int>(p_.weight.column);
    keep_order(places | upper_word(weight));
    wait_for_previous_kernel();
#pragma unroll
    for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const std::uint32_t value =
            weight[(exists ? 2 * pair : 0) * p_.weight.image + kh * static_cast<int>(p_.weight.row)].bits;
        weights_[kh][pair] = is_tap ? value << 16 * high : 0;
      }
    }
  }

  FUSEDSC_DEVICE void compute() {
    int places[1];
    Block::clear_behind_tiles();
    const std::uint32_t all = Block::aim(2, places);
    group_barrier(0, p_.threads());
    load_weights(all);
    Sums sums[kKept];
#pragma unroll
    for (int i = 0; i < kKept; ++i) Block::clear(sums[i]);
    Block::work_off([&](const DepthwiseTileNote& at, const unsigned char* tile, unsigned char* out) {
      tile += places[0];
      int row = read_entry(at.output_row);
#pragma unroll 1
      for (int r = 0; r < p_.rows; ++r) {
        add_row(tile, sums, out, row);
        tile += Block::row_bytes();
        out += 2 * p_.out_row_bytes;
        row += 2;
      }
    });
  }

  /// A row of grad_y to all rows of grad_x that it belongs to; those that it completes, `row` and the next, to `out`.
  FUSEDSC_DEVICE void add_row(const unsigned char* from, Sums (&sums)[kKept], unsigned char* out, int row) const {
    typename Block::Run runs[2];
    Block::load_halves(from, runs);
    std::uint32_t operands[kPairs][2];
    Block::sort(runs, 0, operands);
    Sums finished[2];
#pragma unroll
    for (int kh = 0; kh < kKernel; ++kh) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float sum[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) sum[v] = kh < kKept ? sums[kh][pair][v] : 0.0f;
        wave_multiply_add_half(sum, operands[pair], weights_[kh][pair], T());
        float(&to)[4] = kh < 2 ? finished[kh][pair] : sums[kh < 2 ? 0 : kh - 2][pair];
#pragma unroll
        for (int v = 0; v < 4; ++v) to[v] = sum[v];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      outputs_.finish(out + i * p_.out_row_bytes, row + i, finished[i]);
    }
  }

  std::uint32_t weights_[kKernel][kPairs];
};

}  // namespace fusedsc::gpu::hopper
