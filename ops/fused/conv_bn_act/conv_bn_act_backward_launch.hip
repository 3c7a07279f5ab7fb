#include <algorithm>

#include "fusedsc/fused/conv_bn_act/conv_bn_act_backward_kernel.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_gpu.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_launch.h"

namespace fusedsc {
namespace gpu {
namespace {

/// Tiles on their way at a time.
constexpr int kBackwardStages = 2;
/// Kernels for larger windows have more in their registers, and so have those whose groups of channels are too few to
/// share work.
constexpr int backward_blocks(int words, int step, int squares) {
  return words == 6 || (words >= 4 && squares > 1) || (words == 8 && step == 0) ? 1 : kConvBlocks;
}
constexpr int kMostRows = 8;           ///< of a tile
constexpr int kMostPriorRows = 4;      ///< of which the prior takes so many at most
constexpr int kBackwardChannels = 16;  // of a warp

template <class T, int kWords, int kStep, int kSquares>
FUSEDSC_KERNEL(kConvThreads, backward_blocks(kWords, kStep, kSquares))
conv_backward_kernel(ConvBackwardParameters parameters) {
  ConvBackward<T, kWords, kStep, kBackwardStages, kSquares>::run(parameters);
}

/// T only keeps the kernels of several files apart.
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

using tuning::Config;
using tuning::Configs;
using tuning::Knob;

ConvProblem problem_of(const ConvBnActBackwardArguments& block) {
  return {block.x, block.weight, block.grad_y, block.window, block.allow_tf32};
}

/// Of the kernels whose groups have all of sum X X the one with the least work.
const BackwardInstance& instance_for(const ConvProblem& problem) {
  const int words = patch_words(problem), step = known_step(problem);
  const std::int64_t groups = (problem.output.sizes[1] + kBackwardChannels - 1) / kBackwardChannels;
  const BackwardInstance* found = nullptr;
  for (const BackwardInstance& one : kBackwardInstances) {
    if (one.dtype != problem.x.dtype || one.words != words || one.step != step) continue;
    if (groups * one.squares * 16 < patch_taps(problem)) continue;
    if (found == nullptr || one.squares < found->squares) found = &one;
  }
  return *found;
}

std::size_t bytes_of(const ConvProblem& problem, int rows) {
  ConvShape shape = conv_shape(problem, rows, kBackwardChannels);
  return conv_backward_memory(problem, shape, kBackwardStages).bytes;
}

Configs backward_configs(const ConvBnActBackwardArguments& block) {
  const ConvProblem problem = problem_of(block);
  Configs list;
  for (int rows = kMostRows; rows >= 1; --rows) {
    const auto bytes = [&](int some) { return bytes_of(problem, some); };
    if (tile_rows_fit(problem, rows, bytes)) list.push_back({{Knob::rows, rows}});
  }
  return list;
}

// ---------------------------------------------------------------------------------------------------------- backward

struct BackwardPass {
  const BackwardInstance* instance = nullptr;
  int tile_rows = 1;
  std::int64_t blocks = 0;

  BackwardPass(const ConvBnActBackwardArguments& block, const Config& config) : tile_rows(config[Knob::rows]) {
    const ConvProblem problem = problem_of(block);
    const auto bytes = [&](int rows) { return bytes_of(problem, rows); };
    const bool is_known = config == Config{{Knob::rows, tile_rows}} && tile_rows <= kMostRows;
    if (!is_known || !tile_rows_fit(problem, tile_rows, bytes)) throw_no_such_tiles(config, "rows");
    instance = &instance_for(problem);
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
    launch(kConvName, instance->sums, blocks, kConvThreads, memory.bytes, execution.stream, p);

    ConvSumParameters sum{partials, static_cast<int>(blocks), size(block), sums};
    launch_following(kConvName, conv_sum_kernel<Float16>, (sum.size + 31) / 32, kConvSumThreads, execution.stream, sum,
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
    launch_following(kConvName, instance->gradient, p.shape.channels, kConvGradientThreads, execution.stream, gradient);
  }
};

Plan<ConvBnActBackwardArguments> plan_backward(const ConvBnActBackwardArguments& block, const Config& config,
                                               int /*threads*/) {
  const BackwardPass pass(block, config);
  return {pass.workspace_bytes(block),
          [pass](const ConvBnActBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu

tuning::Kernel<ConvBnActBackwardArguments> conv_bn_act_backward_gpu() {
  return {
      .name = "gpu",
      .unsupported = [](const ConvBnActBackwardArguments& block) -> std::string {
        if (block.grad_x) return "it has no gradient of x, which images do not need";
        return gpu::why_not_patches(gpu::problem_of(block));
      },
      .configs = gpu::backward_configs,
      .plan = gpu::plan_backward,
  };
}

tuning::Config conv_bn_act_backward_gpu_prior(const ConvBnActBackwardArguments& block) {
  const gpu::ConvProblem problem = gpu::problem_of(block);
  const auto bytes = [&](int rows) { return gpu::bytes_of(problem, rows); };
  return {{tuning::Knob::rows, gpu::prior_tile_rows(problem, gpu::kMostPriorRows, bytes)}};
}

}  // namespace fusedsc
