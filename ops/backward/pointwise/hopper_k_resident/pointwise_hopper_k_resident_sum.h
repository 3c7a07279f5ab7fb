/// The second kernel of both gradients of a pointwise convolution on Hopper GPUs: adds up, in a fixed order, what the
/// blocks of the first have left.
#pragma once

#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_splits.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/pointwise/tiles/weight_source.h"

namespace fusedsc::gpu::hopper {

/// Some warps of a block take some of the splits each, of 128 channels and rows.
struct GradientsSumParameters {
  const float* partials = nullptr;  ///< [split][row: output..., grad, grad_times_centered][channel]
  int splits = 1, rows = 0, outputs = 0, channels = 0;
  int warps = 1, groups = 1;  ///< that share the splits; groups of them in a block, of at most kSumWarps
  void* weight = nullptr;
  WeightSource places;                                    ///< where in `weight` its elements are
  float *grad = nullptr, *grad_times_centered = nullptr;  ///< or none
  GradientNormaliserParameters normaliser;                ///< of these

  /// Fours of `weight` and of `grad`; who adds up the latter adds up grad_times_centered too.
  FUSEDSC_HOST_DEVICE int items() const { return (rows - (rows > outputs ? 1 : 0)) * channels / 4; }
};
inline constexpr int kSumWarps = 32;

template <class T>
FUSEDSC_DEVICE void sum_gradients(const GradientsSumParameters& p) {
  using Four = Aligned<float, 4>;
  const int lane = thread_index() % 32, warp = thread_index() / 32 % p.warps, group = thread_index() / 32 / p.warps;
  const int item = ((static_cast<int>(block_index()) * p.groups + group) * 32 + lane) * 4, size = p.items() * 4;
  if (p.normaliser.grad_scale == nullptr) let_next_kernel_start();  // see SumPartialsParameters::lets_next_start
  auto *sums = static_cast<Four*>(shared_memory()), *centered_sums = sums + p.groups * p.warps * 32;
  const int row = item / p.channels, channel = item % p.channels;
  const bool is_pair = row >= p.outputs;
  std::int64_t offsets[4];
  const int first_channel = p.places.first(row);
  bool is_wanted = is_pair;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    offsets[i] = p.places.offset(row, first_channel, channel + i);
    is_wanted = is_wanted || offsets[i] >= 0;
  }
  const SplitsOfThread splits(p.partials + item, std::int64_t{p.rows} * p.channels,
                              item < size && is_wanted ? p.splits : 0, warp, p.warps);
  std::uint32_t all = splits.place();
#pragma unroll
  for (int i = 0; i < 4; ++i) all |= static_cast<std::uint32_t>(offsets[i]);
  keep_order(all & 0x7fffffffu);
  wait_for_previous_kernel();
  Four sum = splits.sum(), centered = {};
  OwnGradientNormaliser<float> own[4];
  if (is_pair && item < size) {
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = {p.normaliser, channel + i};
    }
    centered = splits.sum(p.channels * 4);
  }
  if (p.warps > 1) {
    sums[thread_index()] = sum;
    centered_sums[thread_index()] = centered;
    block_barrier();
  }
  if (warp != 0 || item >= size) return;
  const auto add = [](Four& to, const Four& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to.elements[i] += other.elements[i];
  };
  for (int other = 1; other < p.warps; ++other) {
    add(sum, sums[thread_index() + other * 32]);
    add(centered, centered_sums[thread_index() + other * 32]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (is_pair) {
      put(p.grad, channel + i, sum.elements[i]);
      put(p.grad_times_centered, channel + i, centered.elements[i]);
      normalise(p.normaliser, own[i], channel + i, sum.elements[i], centered.elements[i]);
    } else if (offsets[i] >= 0) {
      from_accumulator(sum.elements[i], static_cast<T*>(p.weight)[offsets[i]]);
    }
  }
}

}  // namespace fusedsc::gpu::hopper
