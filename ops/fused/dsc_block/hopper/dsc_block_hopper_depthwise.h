/// The depthwise half of the fused block's kernel in eval mode on Hopper GPUs: warps that make d of x, normalised and
/// activated, in tiles that products take for an operand.
///
/// Multiplied is by tensor cores, patches of pairs of channels by bands of weights, as
/// forward/depthwise/hopper_patches/depthwise_hopper_patches_kernel.h does; the 16 patches of a product are spread over
/// the strips of a tile. Zeros times an infinity or a NaN in x make NaNs of a patch's other outputs, which is seen in
/// them: those are computed again, each from its own channel.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/fused/dsc_block/hopper/dsc_block_hopper_memory.h"

namespace fusedsc::gpu::hopper {

template <class Shape>
class DscBlockDepthwise {
 public:
  FUSEDSC_DEVICE DscBlockDepthwise(const DscBlockParameters& p, const DscSharedMemory<Shape>& memory)
      : p_(p), memory_(memory) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const DscBlockPatch patch = memory.patches[g + 8 * half];
      rows_[half] = patch.end - patch.row;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = patch.column * kStride + t + 4 * i;
        places_[half][i] = patch.row * kStride * row_bytes() + column * kRowBytes + swizzle(column);
      }
    }
    middle_place_ = lane * kRowBytes + swizzle(lane);
    first_tap_ = t - g / 2 * kStride;
  }

  /// Warp number `warp` of those that do this has one run of channels after another, in turns with the others.
  FUSEDSC_DEVICE void run(int warp) {
    const int runs = p_.runs();
    int run = warp, first_chunk = 0, tile = static_cast<int>(block_index());
#pragma unroll 1
    while (true) {
#pragma unroll 1
      while (run >= runs) {
        run -= runs;
        first_chunk += p_.chunks;
        tile += static_cast<int>(block_count());
      }
      if (tile >= p_.tiles) return;
      const int number = first_chunk + run / Shape::kRuns;
      const DscBlockChunk chunk(p_, number);
      load_weights(run);
      wait_for_middle(number);
      wait(memory_.arrived + chunk.slot, chunk.parity);
      make(memory_.stages + chunk.slot * memory_.stage_bytes, memory_.middles + chunk.middle * Shape::kMiddleBytes, run,
           tile);
      publish();
      warp_barrier();
      // The last run of a tile stands for those that its last chunk lacks, too.
      const int arrivals = run == runs - 1 ? 1 + p_.chunks * Shape::kRuns - runs : 1;
      if (thread_index() % 32 < arrivals) arrive(memory_.made + chunk.middle);
      run += kWarps;
    }
  }

 private:
  using T = typename Shape::T;
  static constexpr int kStride = Shape::kStride, kRowBytes = Shape::kRowBytes, kRows = Shape::kRows;
  static constexpr int kKernel = Shape::kKernel, kWarps = Shape::kDepthwiseWarps;
  static constexpr int kPairs = 4;                       ///< of channels
  static constexpr int kColumnGroups = kStride + 1;      ///< of 4 columns that a patch of 4 outputs reads
  static constexpr int kKept = (kKernel - 1) / kStride;  ///< output rows that are begun and not finished
  static constexpr int kInputRows = (kRows - 1) * kStride + kKernel;
  static constexpr float kMost = std::numeric_limits<float>::max();
  using Sums = float[kPairs][4];  ///< of a pair of channels both at one position, then both at the other half's
  using Run = Aligned<std::uint32_t, 4>;

  /// Until chunk number `number` may have its tile of d, as the one before it there has been used; and until the one
  /// that had its stage before has come, where there is one stage.
  FUSEDSC_DEVICE void wait_for_middle(int number) const {
    const int before = number - least(2, p_.stages);
    if (before >= 0) wait(memory_.used + DscBlockChunk::use(before), DscBlockChunk::use_parity(before));
  }

  FUSEDSC_DEVICE static int swizzle(int position) { return swizzled_place(0, position); }
  /// Where run `run` of a position lies in it.
  FUSEDSC_DEVICE static int swizzled_place(int run, int position) {
    return (kRowBytes == 128 ? run ^ (position & 7) : run ^ (position >> 1 & 3)) * 16;
  }
  FUSEDSC_DEVICE int row_bytes() const { return p_.pitch * kRowBytes; }

  /// Those of other channels than the lane's own are zeros, and so are those beside a window.
  FUSEDSC_DEVICE void load_weights(int run) {
    const std::uint32_t own_channels = thread_index() / 4 % 2 == 0 ? 0x0000ffffu : 0xffff0000u;  // of a word's two
#pragma unroll
    for (int i = 0; i < kColumnGroups; ++i) {
      const int kw = first_tap_ + 4 * i;
      const bool is_tap = kw >= 0 && kw < kKernel;
      const int place = is_tap ? run * Shape::kRunTapBytes + kw * Shape::kTapBytes : p_.runs() * Shape::kRunTapBytes;
#pragma unroll
      for (int kh = 0; kh < kKernel; ++kh) {
        const Run taps = *reinterpret_cast<const Run*>(memory_.taps + place + kh * kKernel * Shape::kTapBytes);
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) weights_[kh][pair][i] = taps.elements[pair] & own_channels;
      }
    }
  }

  /// A run of a tile of d.
  FUSEDSC_DEVICE void make(const unsigned char* x, unsigned char* middle, int run, int tile) const {
    const int swizzled_run = run % Shape::kRuns * 16;
    const unsigned char* from[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) from[i / 2][i % 2] = x + (places_[i / 2][i % 2] ^ swizzled_run);
    unsigned char* to = middle + (middle_place_ ^ swizzled_run);
    Sums sums[kKept];
#pragma unroll
    for (int i = 0; i < kInputRows; ++i) {
      std::uint32_t operands[kPairs][4], last[kPairs][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Run runs[kColumnGroups];
#pragma unroll
        for (int j = 0; j < kColumnGroups; ++j) {
          runs[j] = *reinterpret_cast<const Run*>(from[half][j % 2] + j / 2 * 8 * kRowBytes);
        }
        from[half][0] += row_bytes();
        from[half][1] += row_bytes();
        // To neighbouring registers, as products want them. The compiler shall not know that nothing else changes: it
        // would copy anew for every product.
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          operands[pair][half] = reordered(runs[0].elements[pair], p_.same_order);
          operands[pair][2 + half] = reordered(runs[1].elements[pair], p_.same_order);
          if constexpr (kColumnGroups == 3) last[pair][half] = reordered(runs[2].elements[pair], p_.same_order);
        }
      }
      Sums finished;
#pragma unroll
      for (int age = kKept; age >= 0; --age) {  // in rows of outputs, of one whose windows cover row i
        const int kh = i % kStride + age * kStride, row = i / kStride - age;
        if (kh >= kKernel || row < 0 || row >= kRows) continue;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          Sums& kept = sums[row % kKept];
          float sum[4];
#pragma unroll
          for (int v = 0; v < 4; ++v) sum[v] = kh == 0 ? 0.0f : kept[pair][v];
          const std::uint32_t(&a)[4] = operands[pair];
          const std::uint32_t(&weights)[kColumnGroups] = weights_[kh][pair];
          wave_multiply_add(sum, {{a[0], a[1], a[2], a[3]}, {weights[0], weights[1]}}, T());
          if constexpr (kColumnGroups == 3) wave_multiply_add_half(sum, last[pair], weights[2], T());
          float(&result)[4] = kh == kKernel - 1 ? finished[pair] : kept[pair];
#pragma unroll
          for (int v = 0; v < 4; ++v) result[v] = sum[v];
        }
      }
      const int row = (i - (kKernel - 1)) / kStride;
      if (i >= kKernel - 1 && (i - (kKernel - 1)) % kStride == 0)
        finish(to + row * 64 * kRowBytes, run, tile, row, finished);
    }
  }

  /// Row `row` of all strips.
  FUSEDSC_DEVICE void finish(unsigned char* to, int run, int tile, int row, Sums& d) const {
    float any = 0;  // what is not finite in one output is in all of its patch, of both channels
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float own = d[0][2 * half] + d[1][2 * half] + d[2][2 * half] + d[3][2 * half];
      any += row < rows_[half] ? own : 0.0f;
    }
    const bool is_whole = !any_of_warp(!(fabsf(any) <= kMost));
    const bool clamps = p_.activation == Activation::relu || p_.activation == Activation::relu6;
    const float* maps = memory_.maps + run * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto scale = reinterpret_cast<const Aligned<float, 4>*>(maps)[i],
                 shift = reinterpret_cast<const Aligned<float, 4>*>(maps)[2 + i];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& value = d[2 * i + j / 4][j % 4];
        const int channel = j / 4 * 2 + j % 2;
        value = value * scale.elements[channel] + shift.elements[channel];
      }
      if (!clamps) {
        activate(p_.activation, d[2 * i]);
        activate(p_.activation, d[2 * i + 1]);
      }
    }
    // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
    const bool to_six = p_.activation == Activation::relu6;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Run words;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const std::uint32_t word = to_bits(d[pair][2 * half], d[pair][2 * half + 1], T());
        words.elements[pair] = clamps ? clamped_pair(word, to_six, T()) : word;
      }
      *reinterpret_cast<Run*>(to + half * 32 * kRowBytes) = words;
    }
    if (!is_whole) compute_again(to, run, tile, row);
  }

  /// Rarely: what zeros of the other operand have made a NaN of, element by element from x, each from its own channel.
  FUSEDSC_DEVICE void compute_again(unsigned char* to, int run, int tile, int row) const {
    const DscBlockPlace place(p_, tile);
    const int lane = thread_index() % 32;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int half = i / 8, channel = i % 8;
      const DscBlockPatch patch = memory_.patches[lane / 4 + 8 * half];
      float z[1] = {p_.template window_sum<T, kKernel, kStride>(
          place.image, run * 8 + channel, place.row + patch.row + row, place.column + patch.column + lane % 4)};
      const float* maps = memory_.maps + run * 16;
      z[0] = z[0] * maps[channel] + maps[8 + channel];
      activate(p_.activation, z);
      from_accumulator(z[0], reinterpret_cast<T*>(to + half * 32 * kRowBytes)[channel]);
    }
  }

  const DscBlockParameters& p_;
  const DscSharedMemory<Shape>& memory_;
  /// Of the thread, in tiles of x, of run 0: its first column of each half's patch, and 4 further. Runs are swizzled
  /// alike 8 columns further.
  int places_[2][2];
  int middle_place_;  ///< in tiles of d
  int rows_[2];       ///< of each half's patch, rows of its strip that are the tile's own
  int first_tap_;     ///< the column of a window that the lane's first weight is of, if there is one
  std::uint32_t weights_[kKernel][kPairs][kColumnGroups];
};

}  // namespace fusedsc::gpu::hopper
