/// The second pass of the weight gradient on Hopper GPUs: adds the clusters' sums in a fixed order.
#pragma once

#include "fusedsc/common/gpu/hopper_cluster.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kWeightSumThreads = 256;

struct WeightSumParameters {
  const float* partials = nullptr;  ///< [split][output][channels and 4 more, the first of which is the bias]
  int splits = 0, outputs = 0, channels = 0;
  int lanes = 1;  ///< neighbouring threads that share four channels: a power of two, at most 32
  void *weight = nullptr, *bias = nullptr;
  std::int64_t weight_row = 0;
};

template <class T>
FUSEDSC_DEVICE void sum_weight_partials(const WeightSumParameters& p) {
  const int thread = static_cast<int>(block_index()) * kWeightSumThreads + thread_index();
  const int item = thread / p.lanes, lane = thread % p.lanes, runs = p.channels / 4 + 1;
  const int output = item / runs, channel = (item - output * runs) * 4;
  let_next_kernel_start();
  wait_for_previous_kernel();
  float4 sum = {};
  if (output < p.outputs) {
    const auto* from = reinterpret_cast<const float4*>(p.partials) + item;
    const std::int64_t step = static_cast<std::int64_t>(p.outputs) * runs;
#pragma unroll 4
    for (int split = lane; split < p.splits; split += p.lanes) {
      const float4 other = from[split * step];
      sum = {sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w};
    }
  }
  for (int distance = 1; distance < p.lanes; distance *= 2) {
    sum.x += shuffle_xor(sum.x, distance);
    sum.y += shuffle_xor(sum.y, distance);
    sum.z += shuffle_xor(sum.z, distance);
    sum.w += shuffle_xor(sum.w, distance);
  }
  if (output >= p.outputs || lane != 0) return;
  if (channel < p.channels) {
    if (p.weight != nullptr) store<4>(&sum.x, static_cast<T*>(p.weight) + output * p.weight_row + channel);
  } else if (p.bias != nullptr) {
    from_accumulator(sum.x, static_cast<T*>(p.bias)[output]);
  }
}

}  // namespace fusedsc::gpu::hopper
