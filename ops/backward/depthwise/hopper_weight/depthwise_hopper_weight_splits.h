/// How blocks of depthwise weight gradients on Hopper GPUs share out the units of a channel group, by themselves or in
/// clusters, and what adds up their sums; alike for tiles and patches.
#pragma once

#include <algorithm>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_rows_launch.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_sum.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

/// A kernel of blocks that know nothing of each other, and the same of those that are in clusters: what is done once at
/// their end would take time where kernels are short, even if it were never run.
template <class Parameters>
struct DepthwiseWeightKernels {
  void (*alone)(Parameters) = nullptr;
  void (*in_clusters)(Parameters) = nullptr;
};

/// Whether the blocks of a channel group shall be a cluster. Measured on an H200
/// (docs/log/performance_gpu_depthwise.md): where they are few, and would wait for the second kernel as long as they
/// compute. `resident`: clusters that run at the same time.
inline bool suits_cluster(const DepthwiseTilesShape& shape, const DepthwiseBackwardArguments& a, int resident) {
  const std::int64_t most = a.window.kernel[0] == 5 ? 30'000 : 25'000;  // positions of channels, per multiprocessor
  return channel_groups(shape) <= resident && a.grad_y.elements() <= most * multiprocessors();
}

/// In place of a cluster's size: blocks by themselves, as many as share the work out best.
inline constexpr int kNoCluster = -1;

/// cluster_size: of blocks that have all there is to do; 0: what is best, with clusters or without. even: see
/// share_out().
template <class Parameters>
void share_out_splits(Parameters& p, const DepthwiseWeightKernels<Parameters>& kernels,
                      const DepthwiseBackwardArguments& a, int cluster_size, bool even = false) {
  const int threads = threads_of_block(p), fours = fours_of_part(p.runs(), static_cast<int>(a.window.kernel[0]));
  const auto memory = static_cast<std::size_t>(p.memory_bytes());
  share_out(p, resident_blocks(kernels.alone, threads, memory), even);
  if (cluster_size > 0) share_out_among(p, std::min(p.units, cluster_size));
  // Measured: among few tiles the second one's copies are in the first one's way.
  constexpr std::int64_t kMany = 16;  // tiles of a block
  p.goes_on = p.share * p.grain * a.window.stride[0] >= kMany * p.rows;
  if (p.splits == 1 || p.splits > kMostCluster || cluster_size == kNoCluster) return;
  if (p.image_parts * fours * 16 > p.stages * p.stage_bytes()) return;  // no room for sums where the tiles were
  if (cluster_size == 0 && !suits_cluster(p, a, resident_clusters(kernels.in_clusters, threads, memory, p.splits)))
    return;
  p.sums.cluster = p.splits;
  p.sums.by_cluster = Divisor(static_cast<std::uint32_t>(p.splits));
  p.sums.share = int_divide_up(fours, p.splits);
}

/// The configs of such tiles, with stages as wanted: by blocks by themselves, and by clusters if there is room for
/// their sums. pass_of(cluster_size): a pass of these tiles; throws Unsupported if they do not fit.
template <class PassOf, class Tiling>
void append_clusters(tuning::Configs& list, const PassOf& pass_of, const Tiling& tiling) {
  for (const int cluster : {1, 2, 4, 8}) {
    try {
      const auto pass = pass_of(cluster == 1 ? kNoCluster : cluster);
      if (pass.stages() != tiling.stages || pass.cluster() != cluster) continue;
    } catch (const Unsupported&) {
      return;
    }
    tuning::Config config = config_of(tiling);
    config[tuning::Knob::cluster] = cluster;
    list.push_back(config);
  }
}

/// Of partial sums.
template <class Parameters>
int rows_of_sums(const Parameters& p) {
  return p.sums.cluster > 1 ? 1 : p.splits * p.image_parts;
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
  const int threads = threads_of_block(p);
  const auto memory = static_cast<std::size_t>(p.memory_bytes());
  if (p.sums.cluster > 1) {
    launch_clusters(name, kernels.in_clusters, blocks, threads, stream, p, memory, p.sums.cluster);
  } else {
    launch_following(name, kernels.alone, blocks, threads, stream, p, spread(blocks, memory));
  }
  if (p.sums.partials == nullptr) return;
  launch_sum_weight_rows(name, p.sums.partials, rows_of_sums(p), p.sums.taps, a, stream);
}

}  // namespace fusedsc::gpu::hopper
