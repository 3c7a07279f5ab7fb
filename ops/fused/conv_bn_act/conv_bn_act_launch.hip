#include <algorithm>

#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_backward_kernel.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_gpu.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_kernel.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu {
namespace {

constexpr const char* kName = "conv_bn_act";

/// Tiles on their way at a time, and blocks that shall fit a multiprocessor. Kernels for larger windows have more in
/// their registers, and so has the backward one where groups of channels are too few to share work.
constexpr int kForwardStages = 2, kBackwardStages = 2, kBlocks = 2;
constexpr int forward_blocks(int words) { return words == 6 ? 1 : kBlocks; }
constexpr int backward_blocks(int words, int step, int squares) {
  return words == 6 || (words >= 4 && squares > 1) || (words == 8 && step == 0) ? 1 : kBlocks;
}

template <class T, int kWords, int kStep, int kTiles, bool kStatistics>
FUSEDSC_KERNEL(kConvThreads, forward_blocks(kWords))
conv_forward_kernel(ConvForwardParameters parameters) {
  if constexpr (!kStatistics) wait_for_previous_kernel();
  conv_forward<T, kWords, kStep, kTiles, kForwardStages, kStatistics>(parameters);
}

template <class T, int kWords, int kStep, int kSquares>
FUSEDSC_KERNEL(kConvThreads, backward_blocks(kWords, kStep, kSquares))
conv_backward_kernel(ConvBackwardParameters parameters) {
  ConvBackward<T, kWords, kStep, kBackwardStages, kSquares>::run(parameters);
}

/// T only keeps the kernels of several files apart.
template <class T>
FUSEDSC_KERNEL(kConvThreads, 1)
conv_statistics_kernel(ConvStatisticsParameters parameters) {
  wait_for_previous_kernel();
  conv_statistics(parameters);
}

template <class T>
FUSEDSC_KERNEL(kConvSumThreads, 1)
conv_sum_kernel(ConvSumParameters parameters) {
  wait_for_previous_kernel();
  conv_sum(parameters);
}

template <class T>
FUSEDSC_KERNEL(kConvGradientThreads, 1)
conv_gradient_kernel(ConvGradientParameters parameters) {
  wait_for_previous_kernel();
  conv_gradient<T>(parameters);
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

/// The one with the most channels to a warp is taken: what is read for them is read once. For images every number.
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

struct BackwardInstance {
  DataType dtype;
  int words, step, squares;
  void (*sums)(ConvBackwardParameters);
  void (*gradient)(ConvGradientParameters);
};

template <class T, int kWords, int kStep, int kSquares>
constexpr BackwardInstance backward(DataType dtype) {
  BackwardInstance instance{dtype, kWords, kStep, kSquares, nullptr, nullptr};
  if constexpr (kWaveProducts) {
    instance.sums = conv_backward_kernel<T, kWords, kStep, kSquares>;
    instance.gradient = conv_gradient_kernel<T>;
  }
  return instance;
}

/// Of those whose groups have all of sum X X the one with the least work is taken.
const BackwardInstance kBackwardInstances[] = {
    backward<Float16, 4, kImageStep / 2, 1>(DataType::float16),
    backward<Float16, 4, kImageStep / 2, 2>(DataType::float16),
    backward<Float16, 2, 0, 1>(DataType::float16),
    backward<Float16, 4, 0, 1>(DataType::float16),
    backward<Float16, 4, 0, 2>(DataType::float16),
    backward<Float16, 6, 0, 1>(DataType::float16),
    backward<Float16, 6, 0, 3>(DataType::float16),
    backward<BFloat16, 4, kImageStep / 2, 1>(DataType::bfloat16),
    backward<BFloat16, 4, kImageStep / 2, 2>(DataType::bfloat16),
    backward<BFloat16, 2, 0, 1>(DataType::bfloat16),
    backward<BFloat16, 4, 0, 1>(DataType::bfloat16),
    backward<BFloat16, 4, 0, 2>(DataType::bfloat16),
    backward<BFloat16, 6, 0, 1>(DataType::bfloat16),
    backward<BFloat16, 6, 0, 3>(DataType::bfloat16),
    backward<float, 8, kImageStep, 1>(DataType::float32),
    backward<float, 8, kImageStep, 2>(DataType::float32),
    backward<float, 8, 0, 1>(DataType::float32),
    backward<float, 8, 0, 2>(DataType::float32),
};

// ------------------------------------------------------------------------------------------------------------- tiles

/// Rows of a tile: as many of `most` as leave every block some tiles and fit its memory. bytes(rows) is the latter.
template <class Bytes>
int choose_tile_rows(const ConvProblem& problem, int most, std::size_t limit, const Bytes& bytes) {
  int rows = most;
  const std::int64_t height = std::max<std::int64_t>(problem.output.sizes[2], 1);
  const auto tiles = [&] { return problem.output.sizes[0] * ((height + rows - 1) / rows); };
  while (rows > 1 && (rows >= 2 * height || bytes(rows) > limit || tiles() < 2 * multiprocessors())) rows /= 2;
  return rows;
}

std::int64_t blocks_for(std::int64_t tiles, int resident) { return std::min<std::int64_t>(tiles, resident); }

template <class Block>
void set_normalisation(const Block& block, ConvShape& shape) {
  shape.mean = block.mean.data;
  shape.invstd = block.invstd.data;
  shape.bn_weight = block.bn_weight.data;
  shape.bn_bias = block.bn_bias.data;
  shape.activation = block.activation;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool is_relu = block.activation == Activation::relu, is_relu6 = block.activation == Activation::relu6;
  shape.clamps = only_clamps(block.activation);
  shape.low = is_relu || is_relu6 ? 0 : -kInfinity;
  shape.high = is_relu6 ? 6 : kInfinity;
}

template <class Block>
double positions_of(const Block& output) {
  return static_cast<double>(std::max<std::int64_t>(output.sizes[0] * output.sizes[2] * output.sizes[3], 1));
}

// ----------------------------------------------------------------------------------------------------------- forward

ConvProblem problem_of(const ConvBnActArguments& block) {
  return {block.x, block.weight, block.y, block.window, block.allow_tf32};
}

struct ForwardPass {
  const ForwardInstance* instance = nullptr;
  int tile_rows = 1;
  std::size_t memory = 0;
  std::int64_t statistics_blocks = 0, result_blocks = 0;

  explicit ForwardPass(const ConvBnActArguments& block) {
    const ConvProblem problem = problem_of(block);
    const int words = patch_words(problem), step = known_step(problem);
    for (const ForwardInstance& candidate : kForwardInstances) {
      if (candidate.dtype != block.x.dtype || candidate.words != words || candidate.step != step) continue;
      if (block.y.sizes[1] % candidate.group_channels != 0) continue;
      if (instance == nullptr || candidate.group_channels > instance->group_channels) instance = &candidate;
    }
    const auto bytes = [&](int rows) {
      const ConvShape shape = conv_shape(problem, rows, instance->group_channels);
      return conv_forward_bytes(shape, kForwardStages, instance->group_channels);
    };
    tile_rows = choose_tile_rows(problem, 8, shared_memory_limit() / kBlocks, bytes);
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
      launch(kName, instance->statistics, statistics_blocks, kConvThreads, memory, execution.stream, p);
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
      launch_following(kName, conv_statistics_kernel<Float16>, blocks, kConvThreads, execution.stream, statistics);
    }
    p.shape.backwards = block.training;  // what the statistics have read last
    launch_following(kName, instance->result, result_blocks, kConvThreads, execution.stream, p, memory);
  }
};

Plan<ConvBnActArguments> plan_forward(const ConvBnActArguments& block, int /*threads*/) {
  const ForwardPass pass(block);
  return {pass.workspace_bytes(block),
          [pass](const ConvBnActArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

// ---------------------------------------------------------------------------------------------------------- backward

ConvProblem problem_of(const ConvBnActBackwardArguments& block) {
  return {block.x, block.weight, block.grad_y, block.window, block.allow_tf32};
}

constexpr int kBackwardChannels = 16;  // of a warp

struct BackwardPass {
  const BackwardInstance* instance = nullptr;
  int tile_rows = 1;
  std::int64_t blocks = 0;

  explicit BackwardPass(const ConvBnActBackwardArguments& block) {
    const ConvProblem problem = problem_of(block);
    const int words = patch_words(problem), step = known_step(problem);
    const std::int64_t groups = (block.grad_y.sizes[1] + kBackwardChannels - 1) / kBackwardChannels;
    for (const BackwardInstance& candidate : kBackwardInstances) {
      if (candidate.dtype != block.x.dtype || candidate.words != words || candidate.step != step) continue;
      if (groups * candidate.squares * 16 < patch_taps(problem)) continue;
      if (instance == nullptr || candidate.squares < instance->squares) instance = &candidate;
    }
    const auto bytes = [&](int rows) {
      ConvShape shape = conv_shape(problem, rows, kBackwardChannels);
      return conv_backward_memory(problem, shape, kBackwardStages).bytes;
    };
    tile_rows = choose_tile_rows(problem, 4, shared_memory_limit() / kBlocks, bytes);
    const std::int64_t tiles = conv_shape(problem, tile_rows, kBackwardChannels).tiles;
    blocks = blocks_for(tiles, resident_blocks(instance->sums, kConvThreads, bytes(tile_rows)));
  }

  int size(const ConvBnActBackwardArguments& block) const {
    return conv_partials(patch_taps(problem_of(block)), static_cast<int>(block.grad_y.sizes[1]));
  }

  struct Memory {
    float* partials;
    double* sums;
  };
  Memory take(const ConvBnActBackwardArguments& block, Arena& arena) const {
    return {arena.take<float>(blocks * size(block)), arena.take<double>(size(block))};
  }

  std::size_t workspace_bytes(const ConvBnActBackwardArguments& block) const {
    Arena measured(nullptr);
    take(block, measured);
    return measured.used();
  }

  void run(const ConvBnActBackwardArguments& block, const Execution& execution) const {
    Arena arena(execution.workspace);
    const ConvProblem problem = problem_of(block);
    ConvBackwardParameters p;
    p.shape = conv_shape(problem, tile_rows, kBackwardChannels);
    set_normalisation(block, p.shape);
    const ConvBackwardMemory memory = conv_backward_memory(problem, p.shape, kBackwardStages);
    p.grad_y = block.grad_y;
    p.grad_runs = memory.grad_runs;
    p.grad_pitch = memory.grad_pitch;
    p.grad_begin = memory.grad_begin;
    p.product_words = 16 * memory.grad_pitch;
    p.copied_positions = 32 / memory.grad_runs;
    p.by_grad_runs = Divisor(static_cast<std::uint32_t>(memory.grad_runs));
    const auto [partials, sums] = take(block, arena);
    p.partials = partials;
    launch(kName, instance->sums, blocks, kConvThreads, memory.bytes, execution.stream, p);

    ConvSumParameters sum{partials, static_cast<int>(blocks), size(block), sums};
    launch_following(kName, conv_sum_kernel<Float16>, (sum.size + 31) / 32, kConvSumThreads, execution.stream, sum,
                     sizeof(double) * kConvSumThreads);
    ConvGradientParameters gradient;
    gradient.sums = sums;
    gradient.channels = p.shape.channels;
    gradient.taps = patch_taps(problem);
    gradient.one = gradient.taps - problem.word_elements();
    gradient.inverse_count = block.training ? 1 / positions_of(block.grad_y) : 0;
    gradient.bn_weight = block.bn_weight.data;
    gradient.mean = block.mean.data;
    gradient.invstd = block.invstd.data;
    gradient.weight = block.weight;
    place_factors(problem, block.weight.strides, gradient.elements);
    place_factors(problem, block.grad_weight.strides, gradient.grad_elements);
    gradient.grad_weight = block.grad_weight;
    gradient.grad_bn_weight = block.grad_bn_weight.data;
    gradient.grad_bn_bias = block.grad_bn_bias.data;
    launch_following(kName, instance->gradient, p.shape.channels, kConvGradientThreads, execution.stream, gradient);
  }
};

Plan<ConvBnActBackwardArguments> plan_backward(const ConvBnActBackwardArguments& block, int /*threads*/) {
  const BackwardPass pass(block);
  return {pass.workspace_bytes(block),
          [pass](const ConvBnActBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu

Implementation<ConvBnActArguments> conv_bn_act_gpu() {
  return {
      .name = "gpu",
      .why_not = [](const ConvBnActArguments& block) { return gpu::why_not_patches(gpu::problem_of(block)); },
      .plan = gpu::plan_forward,
  };
}

Implementation<ConvBnActBackwardArguments> conv_bn_act_backward_gpu() {
  return {
      .name = "gpu",
      .why_not = [](const ConvBnActBackwardArguments& block) -> std::string {
        if (block.grad_x) return "it has no gradient of x, which images do not need";
        return gpu::why_not_patches(gpu::problem_of(block));
      },
      .plan = gpu::plan_backward,
  };
}

}  // namespace fusedsc
