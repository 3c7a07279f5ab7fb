/// What the kernels that compute both gradients of a pointwise convolution in one pass are told, and the kernel that
/// adds the blocks' shares of the weight's gradient up.
#pragma once

#include "fusedsc/backward/pointwise/hopper_n_resident/pointwise_hopper_n_resident_image.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_splits.h"
#include "fusedsc/common/gpu/hopper/hopper.h"

namespace fusedsc::gpu::hopper {

struct PointwiseNResidentParameters {
  TensorMap grad_y, last_grad_y;  ///< the last block of 64 outputs may be narrower
  TensorMap x, own_x;             ///< own_x: of a block that has some of the channels
  TensorMap added, grad_x;
  const void* weight = nullptr;
  std::int64_t weight_row = 0;
  int pixels = 0, pixel_tiles = 0, outputs = 0, channels = 0;
  int splits = 1, parts = 1;  ///< blocks: that share the positions, that share the channels
  int stages = 2;             ///< tiles that each warpgroup has under way
  bool has_added = false;
  const float *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  const unsigned char* image = nullptr;
  Aligned<float, 4>* partials = nullptr;  ///< [split][part][four][thread of 128]
  // What goes without TMA.
  const void* added_data = nullptr;
  void* grad_x_data = nullptr;
  std::int64_t added_row = 0, grad_x_row = 0;
};

FUSEDSC_DEVICE Aligned<float, 2> pair_at(const float* from) {
  return *reinterpret_cast<const Aligned<float, 2>*>(from);
}

/// Where a thread's sums of the weight gradient belong, in fours: of two neighbouring channels, of an output and of the
/// one 8 further.
struct NResidentQuad {
  int output, channel;

  FUSEDSC_DEVICE NResidentQuad(int quad, int thread, int row_quads)
      : output(quad / row_quads * 64 + thread / 32 * 16 + thread % 32 / 4),
        channel(quad % row_quads * 8 + thread % 4 * 2) {}
};

// -------------------------------------------------------------------------------------------------- the blocks' shares

struct NResidentSumParameters {
  const Aligned<float, 4>* partials = nullptr;
  int splits = 1, parts = 1, quads = 0, row_quads = 1, outputs = 0, channels = 0;
  int lanes = 1;  ///< threads that share a four: a power of two
  void* weight = nullptr;
  std::int64_t weight_row = 0;
};

inline constexpr int kNResidentSumThreads = 256;

/// To the weight's gradient, always in the same order.
template <class T>
FUSEDSC_DEVICE void sum_n_resident_partials(const NResidentSumParameters& p) {
  let_next_kernel_start();
  const int items = kNResidentSumThreads / p.lanes, lane = thread_index() / items;
  const int item = static_cast<int>(block_index()) * items + thread_index() % items;
  const int part = item / 128 / p.quads, all = p.parts * p.quads * 128;
  NResidentQuad place(item / 128 % p.quads, item % 128, p.row_quads);
  place.channel += part * p.row_quads * 8;
  const bool has = item < all && place.output < p.outputs && place.channel < p.channels;
  const SplitsOfThread splits(p.partials[0].elements + std::int64_t{item} * 4, std::int64_t{all} * 4,
                              has ? p.splits : 0, lane, p.lanes);
  T* const to = static_cast<T*>(p.weight) + place.output * p.weight_row + place.channel;
  auto* sums = static_cast<Aligned<float, 4>*>(shared_memory());
  keep_order(splits.place() | (upper_word(to) & 0x7fffffffu));
  wait_for_previous_kernel();
  Aligned<float, 4> sum = splits.sum();
  for (int lanes = p.lanes / 2; lanes > 0; lanes /= 2) {
    sums[thread_index()] = sum;
    block_barrier();
    if (lane < lanes) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum.elements[i] += sums[thread_index() + lanes * items].elements[i];
    }
    block_barrier();
  }
  if (!has || lane != 0) return;
  store<2>(sum.elements, to);
  if (place.output + 8 < p.outputs) store<2>(sum.elements + 2, to + 8 * p.weight_row);
}

}  // namespace fusedsc::gpu::hopper
