#include <algorithm>
#include <vector>

#include "fusedsc/fused/conv_bn_act/conv_bn_act_gpu.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_kernel.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_launch.h"

namespace fusedsc {
namespace gpu {
namespace {

/// Tiles on their way at a time.
constexpr int kForwardStages = 2;
/// Kernels for larger windows have more in their registers.
constexpr int forward_blocks(int words) { return words == 6 ? 1 : kConvBlocks; }
constexpr int kMostRows = 8;  ///< of a tile

template <class T, int kWords, int kStep, int kTiles, bool kStatistics>
FUSEDSC_KERNEL(kConvThreads, forward_blocks(kWords))
conv_forward_kernel(ConvForwardParameters parameters) {
  if constexpr (!kStatistics) wait_for_previous_kernel();
  conv_forward<T, kWords, kStep, kTiles, kForwardStages, kStatistics>(parameters);
}

/// T only keeps the kernels of several files apart.
template <class T>
FUSEDSC_KERNEL(kConvThreads, 1)
conv_statistics_kernel(ConvStatisticsParameters parameters) {
  wait_for_previous_kernel();
  conv_statistics(parameters);
}

// --------------------------------------------------------------------------------------------------------- instances

struct ForwardInstance {
  DataType dtype;
  int words, step, group_channels;
  void (*statistics)(ConvForwardParameters);
  void (*result)(ConvForwardParameters);
};

template <class T, int kWords, int kStep, int kTiles>
constexpr ForwardInstance forward(DataType dtype) {
  ForwardInstance instance{dtype, kWords, kStep, 8 * kTiles, nullptr, nullptr};
  if constexpr (kWaveProducts) {
    instance.statistics = conv_forward_kernel<T, kWords, kStep, kTiles, true>;
    instance.result = conv_forward_kernel<T, kWords, kStep, kTiles, false>;
  }
  return instance;
}

/// For images every number of channels to a warp.
const ForwardInstance kForwardInstances[] = {
    forward<Float16, 4, kImageStep / 2, 4>(DataType::float16),
    forward<Float16, 4, kImageStep / 2, 2>(DataType::float16),
    forward<Float16, 4, kImageStep / 2, 1>(DataType::float16),
    forward<Float16, 2, 0, 4>(DataType::float16),
    forward<Float16, 2, 0, 1>(DataType::float16),
    forward<Float16, 4, 0, 4>(DataType::float16),
    forward<Float16, 4, 0, 1>(DataType::float16),
    forward<Float16, 6, 0, 2>(DataType::float16),
    forward<Float16, 6, 0, 1>(DataType::float16),
    forward<BFloat16, 4, kImageStep / 2, 4>(DataType::bfloat16),
    forward<BFloat16, 4, kImageStep / 2, 2>(DataType::bfloat16),
    forward<BFloat16, 4, kImageStep / 2, 1>(DataType::bfloat16),
    forward<BFloat16, 2, 0, 4>(DataType::bfloat16),
    forward<BFloat16, 2, 0, 1>(DataType::bfloat16),
    forward<BFloat16, 4, 0, 4>(DataType::bfloat16),
    forward<BFloat16, 4, 0, 1>(DataType::bfloat16),
    forward<BFloat16, 6, 0, 2>(DataType::bfloat16),
    forward<BFloat16, 6, 0, 1>(DataType::bfloat16),
    forward<float, 8, kImageStep, 4>(DataType::float32),
    forward<float, 8, kImageStep, 2>(DataType::float32),
    forward<float, 8, kImageStep, 1>(DataType::float32),
    forward<float, 8, 0, 2>(DataType::float32),
    forward<float, 8, 0, 1>(DataType::float32),
};

// ------------------------------------------------------------------------------------------------------------- tiles

using tuning::Config;
using tuning::Configs;
using tuning::Knob;

ConvProblem problem_of(const ConvBnActArguments& block) {
  return {block.x, block.weight, block.y, block.window, block.allow_tf32};
}

/// The kernels that can run a problem, in the order of the list: for its type and windows, of whole groups of channels.
std::vector<const ForwardInstance*> instances_for(const ConvProblem& problem) {
  const int words = patch_words(problem), step = known_step(problem);
  std::vector<const ForwardInstance*> found;
  for (const ForwardInstance& one : kForwardInstances) {
    const bool is_for = one.dtype == problem.x.dtype && one.words == words && one.step == step;
    if (is_for && problem.output.sizes[1] % one.group_channels == 0) found.push_back(&one);
  }
  return found;
}

std::size_t bytes_of(const ConvProblem& problem, const ForwardInstance& instance, int rows) {
  const ConvShape shape = conv_shape(problem, rows, instance.group_channels);
  return conv_forward_bytes(shape, kForwardStages, instance.group_channels);
}

Config config_of(const ForwardInstance& instance, int rows) {
  return {{Knob::channels, instance.group_channels}, {Knob::rows, rows}};
}

Configs forward_configs(const ConvBnActArguments& block) {
  const ConvProblem problem = problem_of(block);
  Configs list;
  for (const ForwardInstance* instance : instances_for(problem)) {
    for (int rows = kMostRows; rows >= 1; --rows) {
      const auto bytes = [&](int some) { return bytes_of(problem, *instance, some); };
      if (tile_rows_fit(problem, rows, bytes)) list.push_back(config_of(*instance, rows));
    }
  }
  return list;
}

// ----------------------------------------------------------------------------------------------------------- forward

struct ForwardPass {
  const ForwardInstance* instance = nullptr;
  int tile_rows = 1;
  std::size_t memory = 0;
  std::int64_t statistics_blocks = 0, result_blocks = 0;

  ForwardPass(const ConvBnActArguments& block, const Config& config) : tile_rows(config[Knob::rows]) {
    const ConvProblem problem = problem_of(block);
    for (const ForwardInstance* one : instances_for(problem)) {
      if (config == config_of(*one, tile_rows)) instance = one;
    }
    const auto bytes = [&](int rows) { return bytes_of(problem, *instance, rows); };
    if (instance == nullptr || tile_rows > kMostRows || !tile_rows_fit(problem, tile_rows, bytes)) {
      throw_no_such_tiles(config, "channels and rows");
    }
    memory = bytes(tile_rows);
    const std::int64_t tiles = conv_shape(problem, tile_rows, instance->group_channels).tiles;
    statistics_blocks = blocks_for(tiles, resident_blocks(instance->statistics, kConvThreads, memory));
    result_blocks = blocks_for(tiles, resident_blocks(instance->result, kConvThreads, memory));
  }

  void* take_partials(const ConvBnActArguments& block, Arena& arena) const {
    return block.training ? arena.take<float>(statistics_blocks * 3 * block.y.sizes[1]) : nullptr;
  }

  std::size_t workspace_bytes(const ConvBnActArguments& block) const {
    Arena measured(nullptr);
    take_partials(block, measured);
    return measured.used();
  }

  void run(const ConvBnActArguments& block, const Execution& execution) const {
    Arena arena(execution.workspace);
    ConvForwardParameters p;
    p.shape = conv_shape(problem_of(block), tile_rows, instance->group_channels);
    set_normalisation(block, p.shape);
    if (block.scale) {  // of a mean of 0, with nothing left to multiply by
      p.shape.mean = p.shape.bn_weight = nullptr;
      p.shape.invstd = block.scale.data;
      p.shape.bn_bias = block.shift.data;
    }
    p.y = block.y;
    p.partials = take_partials(block, arena);
    if (block.training) {
      launch(kConvName, instance->statistics, statistics_blocks, kConvThreads, memory, execution.stream, p);
      ConvStatisticsParameters statistics;
      statistics.partials = p.partials;
      statistics.splits = static_cast<int>(statistics_blocks);
      statistics.channels = p.shape.channels;
      statistics.count = positions_of(block.y);
      statistics.eps = block.eps;
      statistics.mean = block.mean.data;
      statistics.invstd = block.invstd.data;
      statistics.variance = block.variance.data;
      const std::int64_t blocks = (p.shape.channels + kConvWarps - 1) / kConvWarps;
      launch_following(kConvName, conv_statistics_kernel<Float16>, blocks, kConvThreads, execution.stream, statistics);
    }
    p.shape.backwards = block.training;  // what the statistics have read last
    launch_following(kConvName, instance->result, result_blocks, kConvThreads, execution.stream, p, memory);
  }
};

Plan<ConvBnActArguments> plan_forward(const ConvBnActArguments& block, const Config& config, int /*threads*/) {
  const ForwardPass pass(block, config);
  return {pass.workspace_bytes(block),
          [pass](const ConvBnActArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu

tuning::Kernel<ConvBnActArguments> conv_bn_act_gpu() {
  return {
      .name = "gpu",
      .unsupported = [](const ConvBnActArguments& block) { return gpu::why_not_patches(gpu::problem_of(block)); },
      .configs = gpu::forward_configs,
      .plan = gpu::plan_forward,
  };
}

tuning::Config conv_bn_act_gpu_prior(const ConvBnActArguments& block) {
  const gpu::ConvProblem problem = gpu::problem_of(block);
  const std::vector<const gpu::ForwardInstance*> instances = gpu::instances_for(problem);
  // The most channels to a warp: what is read for them is read once.
  const gpu::ForwardInstance& widest = **std::max_element(
      instances.begin(), instances.end(), [](auto* a, auto* b) { return a->group_channels < b->group_channels; });
  const auto bytes = [&](int rows) { return gpu::bytes_of(problem, widest, rows); };
  return gpu::config_of(widest, gpu::prior_tile_rows(problem, gpu::kMostRows, bytes));
}

}  // namespace fusedsc
