/// The second pass of depthwise weight gradients of 16 bits on Hopper GPUs: the blocks' rows of partial sums, put
/// together in a fixed order. What it takes is latency alone, so that little is done once the kernel before has ended:
/// all places are worked out ahead, and a thread's loads are under way at once.
///
/// A block has 8 channels of some taps, a thread four of one tap, of every so many rows. Threads with the same four are
/// added up within their warp, then the warps through shared memory, from where neighbouring threads have neighbouring
/// taps of a channel, which lie side by side in the gradient.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper.h"
#include "fusedsc/common/gpu/sums/keep_order.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kWeightRowsThreads = 256, kWeightRowsWarps = kWeightRowsThreads / 32;

struct DepthwiseWeightRowsParameters {
  const float* partials = nullptr;  ///< [row][tap..., bias][channel]
  int rows = 0, row_bytes = 0;
  int taps = 0, kernel = 1;  ///< taps: with the bias if that is wanted
  int channels = 0;          ///< a multiple of 8
  int block_taps_log = 0;    ///< of a block's taps; at most 16
  Divisor by_tap_groups;     ///< blocks with the same channels
  DeviceTensor grad_weight;  ///< or none
  void* grad_bias = nullptr;

  FUSEDSC_HOST_DEVICE int block_fours() const { return 2 << block_taps_log; }
  FUSEDSC_HOST_DEVICE int memory_bytes() const { return kWeightRowsWarps * block_fours() * 16; }
};

/// Of a block's four number `half` of a tap: its place in a row of shared memory, such that the same channel of
/// neighbouring taps falls on different banks, as far as fours can.
FUSEDSC_DEVICE int place_of_four(int tap, int half) { return 2 * tap + (half ^ (tap >> 2 & 1)); }

template <class T>
FUSEDSC_DEVICE void sum_weight_rows(const DepthwiseWeightRowsParameters& p) {
  constexpr int kAtOnce = 4;  // rows of a thread
  using Four = Aligned<float, 4>;
  const int thread = static_cast<int>(thread_index());
  std::uint32_t group = block_index();
  const int first_channel = static_cast<int>(p.by_tap_groups.divide(group)) * 8, first_tap = static_cast<int>(group)
                                                                                             << p.block_taps_log;
  // What the thread adds up.
  const int fours = p.block_fours(), lanes = kWeightRowsThreads / 2 >> p.block_taps_log;
  const int four = thread & (fours - 1), lane = thread >> (p.block_taps_log + 1);
  const int tap = first_tap + four / 2, channel = first_channel + four % 2 * 4;
  const int rows = tap < p.taps ? p.rows : 0;
  const std::uint32_t step = static_cast<std::uint32_t>(lanes * p.row_bytes);
  const auto* from = reinterpret_cast<const unsigned char*>(p.partials) +
                     static_cast<std::uint32_t>(lane * p.row_bytes + (tap * p.channels + channel) * 4);
  // What it leaves there, and of what others leave which it finishes.
  auto* memory = static_cast<Four*>(shared_memory());
  Four* own = memory + thread / 32 * fours + place_of_four(four / 2, four % 2);
  const int out_tap = thread & ((1 << p.block_taps_log) - 1), out_channel = thread >> p.block_taps_log;
  const float* sums =
      reinterpret_cast<const float*>(memory + place_of_four(out_tap, out_channel / 4)) + out_channel % 4;
  const int result_tap = first_tap + out_tap, result_channel = first_channel + out_channel;
  const bool is_bias = result_tap == p.kernel * p.kernel;
  void* to = is_bias ? p.grad_bias : p.grad_weight.data;
  std::uint32_t place = static_cast<std::uint32_t>(result_channel);
  if (!is_bias) {
    const int kh = p.kernel == 3 ? result_tap / 3 : p.kernel == 5 ? result_tap / 5 : result_tap / 7;
    place = static_cast<std::uint32_t>(p.grad_weight.offset(result_channel, 0, kh, result_tap - kh * p.kernel));
  }
  const bool is_wanted = out_channel < 8 && result_tap < p.taps && to != nullptr;
  if (!is_wanted) place = 0;
  // Of addresses the upper words, which follow from the lower ones.
  keep_order(upper_word(from) | step | place | address_of(own) | address_of(sums));
  wait_for_previous_kernel();
  let_next_kernel_start();
  Four sum = {};
  int row = lane;
#pragma unroll 1
  do {
    Four parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      parts[i] = {};
      if (row + i * lanes < rows) {
        parts[i] = *reinterpret_cast<const Four*>(from + i * static_cast<std::size_t>(step));
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum.elements[c] += parts[i].elements[c];
    }
    row += kAtOnce * lanes;
    from += kAtOnce * static_cast<std::size_t>(step);
  } while (row < rows);
#pragma unroll 1
  for (int distance = fours; distance < 32; distance *= 2) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sum.elements[c] += shuffle_xor(sum.elements[c], distance);
  }
  if (thread % 32 < fours) *own = sum;
  block_barrier();
  if (!is_wanted) return;
  float parts[kWeightRowsWarps];
#pragma unroll
  for (int i = 0; i < kWeightRowsWarps; ++i) parts[i] = sums[i * fours * 4];
  float result = 0;
#pragma unroll
  for (int i = 0; i < kWeightRowsWarps; ++i) result += parts[i];
  from_accumulator(result, static_cast<T*>(to)[place]);
}

}  // namespace fusedsc::gpu::hopper
