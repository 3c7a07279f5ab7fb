/// The second kernel of both gradients of a pointwise convolution on Hopper GPUs: adds up, in a fixed order, what the
/// blocks of the first have left.
#pragma once

#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/weight_source.h"

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
  wait_for_previous_kernel();
  auto *sums = static_cast<Four*>(block_memory()), *centered_sums = sums + p.groups * p.warps * 32;
  Four sum = {}, centered = {};
  const auto add = [](Four& to, const Four& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to.elements[i] += other.elements[i];
  };
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
  if (item < size && is_wanted) {
    const float* from = p.partials + item;
    const std::int64_t step = std::int64_t{p.rows} * p.channels;
    const auto add_splits = [&](Four& to, const float* parts_of) {
      constexpr int kAtOnce = 8;  // loads under way: hardly any has more
#pragma unroll 1
      for (int first = warp; first < p.splits; first += p.warps * kAtOnce) {
        Four parts[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int split = first + i * p.warps;
          if (split < p.splits) parts[i] = *reinterpret_cast<const Four*>(parts_of + split * step);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) add(to, parts[i]);
      }
    };
    add_splits(sum, from);
    if (is_pair) add_splits(centered, from + p.channels);
  }
  if (p.warps > 1) {
    sums[thread_index()] = sum;
    centered_sums[thread_index()] = centered;
    block_barrier();
  }
  if (warp != 0 || item >= size) return;
  for (int other = 1; other < p.warps; ++other) {
    add(sum, sums[thread_index() + other * 32]);
    add(centered, centered_sums[thread_index() + other * 32]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (is_pair) {
      put(p.grad, channel + i, sum.elements[i]);
      put(p.grad_times_centered, channel + i, centered.elements[i]);
      normalise(p.normaliser, OwnGradientNormaliser<float>(p.normaliser, channel + i), channel + i, sum.elements[i],
                centered.elements[i]);
    } else if (offsets[i] >= 0) {
      from_accumulator(sum.elements[i], static_cast<T*>(p.weight)[offsets[i]]);
    }
  }
}

}  // namespace fusedsc::gpu::hopper
