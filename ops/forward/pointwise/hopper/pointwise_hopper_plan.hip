#ifdef FUSEDSC_HOPPER
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"

#include <algorithm>

#include "fusedsc/common/gpu/hopper/hopper_cluster.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_cost.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_launches.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kMostResidentStages = 6;

/// Whether its rows in shared memory would fall on different banks, and are short enough to be read through registers.
bool suits_rows(const PointwiseCase& product, const PointwiseInstance& instance) {
  const PointwiseProblem& problem = product.problem;
  // Longer rows were timed only where threads lay the weight out.
  const std::int64_t most_depth = product.has_slow_rows ? 120 : 72;
  const bool suits_channels = problem.channels <= 96 || (product.has_slow_rows && are_odd_rows(problem.channels));
  return product.is_dense && problem.channels <= instance.channels && suits_channels && problem.depth <= most_depth &&
         (are_odd_rows(problem.depth) || problem.depth == 16);
}

/// Whether threads lay the weight out in kernels of a family.
bool lays_out_in(PointwiseFamily family, const PointwiseCase& product) {
  constexpr std::int64_t kManyPositions = 25'000;
  if (product.lays_out || !product.has_slow_rows) return product.lays_out;
  const PointwiseProblem& problem = product.problem;
  const std::int64_t rows = product.input_gradient ? problem.depth : problem.channels;
  const std::int64_t row = product.input_gradient ? problem.channels : problem.depth;
  switch (family) {
    case PointwiseFamily::rows: return true;
    case PointwiseFamily::resident:
      return rows >= kManyRows &&
             (row * 2 <= kShortRow || (!product.input_gradient && problem.pixels >= kManyPositions));
    case PointwiseFamily::sliced_k: return false;
  }
  return false;
}

/// Whether its steps are no shorter than they need be: with a prologue and statistics, half as many values of k at a
/// time are for products that have no more.
bool suits_depth(const PointwiseCase& product, const PointwiseInstance& instance) {
  const bool is_half = instance.depth * static_cast<int>(size_of(instance.dtype)) < 128;
  return !is_half || !instance.prologue || instance.kind != EpilogueKind::statistics ||
         product.problem.depth <= instance.depth;
}

}  // namespace

std::string why_not_hopper(DataType dtype, Device device, std::int64_t groups, std::int64_t pixels, bool takes_tf32) {
  const std::string elsewhere = needs_device(Device::gpu, device);
  if (!elsewhere.empty()) return elsewhere;
  if (size_of(dtype) != 2 && !(takes_tf32 && dtype == DataType::float32)) {
    return std::string("it is for float16 and bfloat16, and float32 where it may be TensorFloat-32; the tensors are ") +
           name_of(dtype);
  }
  if (groups != 1) return "it takes one group";
  if (pixels == 0) return "there are no positions";
  return is_hopper() ? "" : "the GPU is no Hopper";
}

bool suits_weight(const ConstTensorView& weight, const SlidingChannels& windows) {
  if (windows.channels > 0) return windows.channels % 8 == 0 && WeightSource::can_be(weight.sizes[0], windows);
  return suits_tma(weight_matrix(weight, 1), weight.dtype);
}

bool lays_out_in_blocks(const ConstTensorView& weight, const SlidingChannels& windows) {
  constexpr std::int64_t kMost = 1 << 13;
  return windows.channels > 0 && weight.sizes[0] * windows.channels <= kMost;
}

bool has_slow_rows(const ConstTensorView& weight, const SlidingChannels& windows, std::int64_t positions) {
  constexpr std::int64_t kMost = 10'000;
  // A row at an odd multiple of 16 bytes takes TMA 10 to 17 ns where all blocks want it at once: 2.5 us for
  // 144 of them. Few blocks do not feel it.
  return windows.channels == 0 && size_of(weight.dtype) == 2 && are_odd_rows(weight.strides[0]) &&
         weight.sizes[0] * weight.sizes[1] <= kMost && positions >= kManyForCopyEngine;
}

bool can_smem_transpose(const PointwiseCase& product, int channels) {
  return product.smem_transposes_weight && channels % kTransposed == 0;
}

bool suits_cluster(const PointwiseCase& product, int cluster, std::int64_t tiles, int steps) {
  return cluster == 1 || (product.kind == EpilogueKind::plain && !product.lays_out && product.is_dense &&
                          is_latency_bound(product, tiles * cluster) && steps >= cluster &&
                          tiles * cluster <= room_for_clusters(multiprocessors()));
}

namespace {

/// Each launch of an instance that fits, with its cost.
template <class Visit>
void for_each_launch(const PointwiseInstance& instance, const PointwiseCase& product, int size, const Visit& visit) {
  const PointwiseProblem& problem = product.problem;
  if (instance.dtype != problem.dtype || instance.prologue != product.prologue || instance.kind != product.kind) return;
  if (instance.family == PointwiseFamily::rows && !suits_rows(product, instance)) return;
  if (!suits_depth(product, instance)) return;
  PointwiseLaunch launch;
  launch.instance = &instance;
  launch.pixel_tiles = static_cast<int>(divide_up(problem.pixels, kTileRows));
  launch.channel_tiles = static_cast<int>(divide_up(problem.channels, instance.channels));
  // Tiles of whole rows go round the blocks before they go round a block's groups.
  const int tiles_in_block = instance.family == PointwiseFamily::rows ? 1 : instance.row_tiles;
  launch.splits = static_cast<int>(divide_up(launch.pixel_tiles, tiles_in_block));
  launch.lays_out = lays_out_in(instance.family, product);
  const bool is_sliced_k = instance.family == PointwiseFamily::sliced_k;
  // Of more blocks, each of which waits for its first copies, there was never use; nor is the cost known there.
  const bool has_fusion = product.prologue || product.kind == EpilogueKind::gradient;
  const int most_rounds = problem.dtype == DataType::float32 ? 8 : has_fusion ? 3 : 2;
  const bool is_last_resort =
      is_sliced_k && std::int64_t{launch.channel_tiles} * launch.splits > std::int64_t{most_rounds} * size;
  if (!is_sliced_k) launch.splits = std::min(std::max(size / launch.channel_tiles, 1), launch.splits);
  const auto steps = static_cast<int>(divide_up(divide_up(problem.depth, instance.depth), instance.k_slices));
  const std::int64_t tiles = std::int64_t{launch.channel_tiles} * launch.splits;
  // Blocks that stay, with all of shared memory; or that come and go, two or three of them beside each other.
  for (const int beside : {1, 2, 3}) {
    if (beside > 1 && (!is_sliced_k || tiles <= (beside - 1) * size)) break;
    const int memory = kMultiprocessorMemory / beside - (beside > 1 ? kBlockReserve : 0);
    for (const int cluster : kClusters) {
      if (cluster > 1 && (!is_sliced_k || !suits_cluster(product, cluster, tiles, steps))) break;
      launch.cluster = cluster;
      launch.stages = is_sliced_k ? std::max(static_cast<int>(divide_up(steps, cluster)), instance.least_stages)
                                  : kMostResidentStages;
      while (launch.stages >= instance.least_stages && instance.memory(product.memory_use(), launch.stages) > memory)
        --launch.stages;
      if (launch.stages < instance.least_stages) continue;
      const double cost = cost_of(product, instance, launch, size) + (is_last_resort ? kLastResort : 0);
      for (const bool smem_transposes : {false, true}) {
        if (smem_transposes && !can_smem_transpose(product, instance.channels)) break;
        launch.smem_transposes_weight = smem_transposes;
        launch.cost = cost + smem_transpose_cost(kSmemTransposeCost, product, launch, size);
        visit(launch);
      }
    }
  }
}

auto launches_of(const PointwiseCase& product) {
  return [&product, size = multiprocessors()](const PointwiseInstance& instance, const auto& visit) {
    for_each_launch(instance, product, size, visit);
  };
}

}  // namespace

PointwiseLaunch plan(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                     std::optional<PointwiseFamily> family) {
  return cheapest_launch<PointwiseLaunch>(instances, family, launches_of(product));
}

tuning::Configs configs_of(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                           PointwiseFamily family) {
  return launch_configs<PointwiseLaunch>(instances, family, launches_of(product));
}

PointwiseLaunch launch_with(std::span<const PointwiseInstance> instances, const PointwiseCase& product,
                            PointwiseFamily family, const tuning::Config& config) {
  return configured_launch<PointwiseLaunch>(instances, family, config, launches_of(product));
}

void PointwiseLaunch::fill(const PointwiseCase& product, PointwiseParameters& p) const {
  p.pixels = static_cast<int>(product.problem.pixels);
  p.depth = static_cast<int>(product.problem.depth);
  p.channels = static_cast<int>(product.problem.channels);
  p.pixel_tiles = pixel_tiles;
  p.channel_tiles = channel_tiles;
  p.splits = splits;
  p.stages = stages;
  p.cluster = cluster;
  p.smem_transposes_weight = smem_transposes_weight;
  p.has_other = product.has_other;
  p.epilogue.has_x = product.has_x;
  p.epilogue.has_added = product.has_added;
}

void PointwiseLaunch::start(const char* name, const PointwiseCase& product, const PointwiseParameters& parameters,
                            void* stream) const {
  const std::int64_t blocks = std::int64_t{channel_tiles} * splits * cluster;
  const auto memory = static_cast<std::size_t>(instance->memory(product.memory_use(), stages));
  if (cluster == 1)
    return launch_following(name, instance->kernel, blocks, instance->threads, stream, parameters, memory);
  launch_clusters(name, instance->kernel, blocks, instance->threads, stream, parameters,
                  std::max(memory, cluster_bytes(instance->row_tiles, instance->channels)), cluster);
}

}  // namespace fusedsc::gpu::hopper
#endif
