/// How blocks of depthwise weight gradients on Hopper GPUs share out the units of a channel group, by themselves or in
/// clusters, and what adds up their sums; alike for tiles and patches.
#pragma once

#include <algorithm>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise_hopper_weight_sum.h"
#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

/// A kernel of blocks that know nothing of each other, and the same of those that are in clusters: what is done once at
/// their end would take time where kernels are short, even if it were never run.
template <class Parameters>
struct DepthwiseWeightKernels {
  void (*alone)(Parameters) = nullptr;
  void (*in_clusters)(Parameters) = nullptr;
};

/// How many blocks shall be a cluster, of a problem shared out among blocks that are in none. resident(cluster): how
/// many clusters of so many blocks run at the same time.
template <class Resident>
int choose_cluster(const DepthwiseTilesShape& shape, const Resident& resident) {
  if (shape.splits > kMostCluster) return shape.splits >= 2 * kMostCluster ? kMostCluster : 1;
  int cluster = shape.splits;  // all, so that nothing is left to add up; or fewer, so that all clusters run together
  while (cluster > 1 && resident(cluster) < channel_groups(shape)) --cluster;
  return cluster;
}

/// kernel: of the window. cluster: blocks that shall be one; 0: as many as are best. even: see share_out().
template <class Parameters>
void share_out_splits(Parameters& p, const DepthwiseWeightKernels<Parameters>& kernels, int kernel, int cluster,
                      bool even = false) {
  const int threads = (p.warps() + 1) * 32, fours = fours_of_part(p.runs(), kernel);
  const auto memory = static_cast<std::size_t>(p.memory_bytes());
  share_out(p, resident_blocks(kernels.alone, threads, memory), even);
  if (p.image_parts * fours * 16 > p.stages * p.stage_bytes()) return;  // no room for sums where the tiles were
  const auto resident = [&](int size) { return resident_clusters(kernels.in_clusters, threads, memory, size); };
  if (cluster == 0) cluster = choose_cluster(p, resident);
  if (cluster == 1) return;
  const int clusters = std::max(1, std::min(divide_up(p.splits, cluster), resident(cluster) / channel_groups(p)));
  share_out_among(p, clusters * cluster);
  p.sums.cluster = cluster;
  p.sums.by_cluster = Divisor(static_cast<std::uint32_t>(cluster));
  p.sums.share = divide_up(fours, cluster);
}

/// Of partial sums.
template <class Parameters>
int rows_of_sums(const Parameters& p) {
  return p.sums.cluster > 1 ? p.splits / p.sums.cluster : p.splits * p.image_parts;
}

/// Memory for them, unless one row is all there is.
template <class Parameters>
float* take_partials(const Parameters& p, int kernel, Arena& arena) {
  const std::int64_t rows = rows_of_sums(p);
  return rows > 1 ? arena.take<float>(rows * (kernel * kernel + 1) * p.channels) : nullptr;
}

/// One or two launches. p: with all addresses.
template <class Parameters>
void launch_weight_gradient(const char* name, const DepthwiseWeightKernels<Parameters>& kernels, const Parameters& p,
                            const DepthwiseBackwardArguments& a, void* stream) {
  const std::int64_t blocks = std::int64_t{channel_groups(p)} * p.splits;
  const int threads = (p.warps() + 1) * 32;
  const auto memory = static_cast<std::size_t>(p.memory_bytes());
  if (p.sums.cluster > 1) {
    launch_clusters(name, kernels.in_clusters, blocks, threads, stream, p, memory, p.sums.cluster);
  } else {
    launch_following(name, kernels.alone, blocks, threads, stream, p, memory);
  }
  if (p.sums.partials == nullptr) return;
  SumPartialsParameters sum;
  sum.partials = p.sums.partials;
  sum.splits = rows_of_sums(p);
  sum.taps = static_cast<int>(a.window.kernel[0] * a.window.kernel[1]);
  sum.kernel_width = static_cast<int>(a.window.kernel[1]);
  sum.rows = p.sums.taps;
  sum.channels = p.channels;
  sum.weight = a.grad_weight;
  sum.bias = a.grad_bias.data;
  sum.lets_next_start = true;
  launch_sum_partials(name, a.x.dtype, sum, stream);
}

}  // namespace fusedsc::gpu::hopper
