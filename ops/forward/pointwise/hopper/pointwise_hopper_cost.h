/// What launches on a Hopper GPU take, in microseconds, as far as the choice among them needs it.
#pragma once

#include <cmath>
#include <cstdint>

#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {

inline constexpr int kMultiprocessorMemory = 227 * 1024, kBlockReserve = 1024;  ///< bytes of shared memory
inline constexpr double kLastResort = 1e9;
/// Of fewer positions it does not matter where the rows begin that TMA goes over.
inline constexpr std::int64_t kManyForCopyEngine = 4096;

/// But for who transposes the weight. size: multiprocessors.
double cost_of(const PointwiseCase& product, const PointwiseInstance& instance, const PointwiseLaunch& launch,
               int size);

/// Of float32's weight, in microseconds: transposed by blocks that keep it (and for each 128 bytes of k and 64 channels
/// of it), or by others in each step; or by a kernel before.
struct SmemTransposeCost {
  double resident_weight, resident_weight_tile, step, transposed;
};
inline constexpr SmemTransposeCost kSmemTransposeCost{0.7953, 0.01638, 0.2412, 1.541};
template <class Launch>
double smem_transpose_cost(const SmemTransposeCost& cost, const PointwiseCase& product, const Launch& launch,
                           int size) {
  if (!product.smem_transposes_weight) return 0;
  if (!launch.smem_transposes_weight) return cost.transposed;
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const auto& instance = *launch.instance;
  const std::int64_t steps = up(product.problem.depth, instance.depth);
  if (instance.family == PointwiseFamily::resident) {
    return cost.resident_weight + cost.resident_weight_tile * static_cast<double>(steps) * instance.channels / 64.0;
  }
  const std::int64_t rounds = up(std::int64_t{launch.channel_tiles} * launch.splits * launch.cluster, size);
  return cost.step * static_cast<double>(up(steps, std::int64_t{instance.k_slices} * launch.cluster) * rounds);
}

/// Of kernels that cut k, without a prologue, of small tensors, with no more blocks than there are multiprocessors, so
/// that nothing hides their latencies. Fitted to the times of all tiles and clusters on the layers of mobile networks
/// on an H200, in microseconds; a single number says little.
struct LatencyCost {
  double start, step;              ///< a kernel; of a group: 128 bytes of k
  double copied;                   ///< bytes of a block, millions
  double own, shared;              ///< of a group: 64 channels that it finishes; sums of groups that share k
  double cluster, sums, doubling;  ///< blocks that share k: meeting; sums of 64 channels; each doubling of their number
  double memory, cache;            ///< bytes of all, millions
};
/// Whether it is for so many blocks of a product.
bool is_latency_bound(const PointwiseCase& product, std::int64_t blocks);
template <class Instance, class Launch>
double latency_bound_cost(const LatencyCost& cost, const PointwiseCase& product, const Instance& instance,
                          const Launch& launch) {
  const PointwiseProblem& problem = product.problem;
  const auto up = [](std::int64_t a, std::int64_t b) { return static_cast<double>((a + b - 1) / b); };
  const double element = static_cast<double>(size_of(problem.dtype)), outs = product.has_added ? 2 : 1;
  const double row_tiles = instance.row_tiles, rows = row_tiles * kTileRows, channels = instance.channels / 64.0;
  const std::int64_t steps = (problem.depth + instance.depth - 1) / instance.depth,
                     own_steps =
                         (steps + instance.k_slices * launch.cluster - 1) / (instance.k_slices * launch.cluster);
  const double copied =
      up(steps, launch.cluster) * 128 * (rows + instance.channels) + rows * instance.channels * element * outs;
  const double pixels = static_cast<double>(problem.pixels), depth = static_cast<double>(problem.depth);
  const double in = pixels * depth * element, out = pixels * static_cast<double>(problem.channels) * element * outs,
               weight = depth * static_cast<double>(problem.channels) * element;
  double sum = cost.start + static_cast<double>(own_steps) * cost.step + 1e-6 * copied * cost.copied +
               row_tiles * channels * outs / instance.k_slices * cost.own + (instance.k_slices > 1 ? cost.shared : 0) +
               1e-6 * (in + out + (product.swap_ab ? weight : 0)) * cost.memory +
               1e-6 * (in * launch.channel_tiles + out + weight * launch.splits) * cost.cache;
  if (launch.cluster > 1) {
    sum += cost.cluster + row_tiles * channels * cost.sums + std::log2(launch.cluster) * cost.doubling;
  }
  return sum;
}

}  // namespace fusedsc::gpu::hopper
