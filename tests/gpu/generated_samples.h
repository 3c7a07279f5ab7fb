/// Problems and configs of generated kernels that are run by tests. Where nothing is compiled at run time, their texts
/// are compiled with the tests (tests/generated/make_samples.cpp): both go over this list.
#pragma once

#include <string>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/tuning/generator/fragment_tiling.h"
#include "gpu/gpu_under_test.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {

/// A kernel's. `separate`: the role in which "gpu_separate" leaves the kernel's role to it, or none.
template <class Case, class Arguments>
struct GeneratedSamples {
  const char *role, *separate;
  tuning::Kernel<Arguments> kernel;
  std::vector<Case> problems;
  bool fragments = false;  ///< of a kernel's configs those by fragments; else the others
};

inline constexpr Memory kSampledMemories[] = {Memory::channels_last, Memory::contiguous};

/// Of pointwise forward: a bias, a prologue and an epilogue, what training does.
inline const ForwardFusion kPointwiseFusions[] = {
    {.bias = true},
    {.prologue = true,
     .activation = Activation::relu6,
     .output = ForwardFusion::Output::epilogue,
     .epilogue_activation = Activation::relu,
     .residual = true},
    {.bias = true, .prologue = true, .activation = Activation::relu, .output = ForwardFusion::Output::statistics},
};

inline auto pointwise_samples(DataType dtype) {
  const auto& [biased, fused, training] = kPointwiseFusions;
  GeneratedSamples<ForwardCase<PointwiseGeometry>, PointwiseArguments> samples{
      "pointwise_conv2d.forward", nullptr, gpu::pointwise_generated(), {}};
  for (const Memory memory : kSampledMemories) {
    const Memories memories = Memories::all(memory);
    samples.problems.push_back({dtype, {{2, 24, 7, 7}, 40}, biased, memories});
    samples.problems.push_back({dtype, {{1, 56, 8, 10}, 64}, fused, memories});
    samples.problems.push_back({dtype, {{2, 32, 12, 14}, 96}, training, memories});
    samples.problems.push_back({dtype, {{1, 66, 5, 7}, 70, 2}, {}, memories});
  }
  return samples;
}

/// Whole runs, and of 16 bits packed rows; none of doubles, which have no such kernels.
inline auto pointwise_fragments_samples(DataType dtype) {
  const auto& [biased, fused, training] = kPointwiseFusions;
  const ForwardFusion smooth{
      .prologue = true, .activation = Activation::silu, .output = ForwardFusion::Output::epilogue};
  GeneratedSamples<ForwardCase<PointwiseGeometry>, PointwiseArguments> samples{
      "pointwise_conv2d.forward", nullptr, gpu::pointwise_generated(), {}, true};
  if (dtype == DataType::float64) return samples;
  const Memories memories = Memories::all(Memory::channels_last);
  samples.problems = {{dtype, {{2, 24, 7, 7}, 40, 1, true}, biased, memories},
                      {dtype, {{1, 160, 8, 10}, 64, 1, true}, fused, memories},
                      {dtype, {{2, 72, 12, 14}, 96, 1, true}, training, memories},
                      {dtype, {{1, 64, 5, 7}, 96, 2, true}, smooth, memories}};
  if (size_of(dtype) == 2) {
    samples.problems.push_back({dtype, {{2, 34, 6, 7}, 46}, fused, memories});
    samples.problems.push_back({dtype, {{1, 172, 5, 5}, 60, 2}, {}, memories});
  }
  return samples;
}

inline auto depthwise_samples(DataType dtype) {
  using enum ForwardFusion::Output;
  const ForwardFusion biased{.bias = true},
      fused{.prologue = true, .activation = Activation::silu, .output = epilogue, .residual = true},
      training{.bias = true, .prologue = true, .activation = Activation::relu6, .output = statistics};
  GeneratedSamples<ForwardCase<DepthwiseGeometry>, DepthwiseArguments> samples{
      "depthwise_conv2d.forward", nullptr, gpu::depthwise_generated(), {}};
  for (const Memory memory : kSampledMemories) {
    const Memories memories = Memories::all(memory);
    samples.problems.push_back({dtype, {{2, 24, 11, 13}, centered(3)}, biased, memories});
    samples.problems.push_back({dtype, {{1, 20, 9, 14}, centered(4)}, fused, memories});
    samples.problems.push_back({dtype, {{2, 17, 16, 10}, centered(5, 2)}, training, memories});
  }
  return samples;
}

/// Of the input's gradient: nothing, a BatchNorm in front, a residual.
inline const BackwardFusion kInputFusions[] = {
    {.grad_weight = false, .grad_bias = false},
    {.prologue = true,
     .activation = Activation::relu6,
     .gradient_prologue = true,
     .sums = true,
     .grad_weight = false,
     .grad_bias = false},
    {.activation = Activation::silu,
     .gradient_prologue = true,
     .grad_add = true,
     .grad_weight = false,
     .grad_bias = false},
};
inline const BackwardFusion kWeightFusions[] = {
    {.grad_x = false},
    {.prologue = true, .activation = Activation::relu, .gradient_prologue = true, .grad_x = false},
};

using DepthwiseGradientSamples = GeneratedSamples<BackwardCase<DepthwiseGeometry>, DepthwiseBackwardArguments>;

inline DepthwiseGradientSamples depthwise_input_samples(DataType dtype) {
  const auto& [plain, to_batch_norm, to_residual] = kInputFusions;
  DepthwiseGradientSamples samples{
      "depthwise_conv2d.grad_input", "depthwise_conv2d.backward", gpu::depthwise_generated_input(), {}};
  for (const Memory memory : kSampledMemories) {
    const Memories memories = Memories::all(memory);
    samples.problems.push_back({dtype, {{2, 24, 11, 13}, centered(3, 2)}, plain, memories});
    samples.problems.push_back({dtype, {{2, 20, 9, 14}, centered(3)}, to_batch_norm, memories});
    samples.problems.push_back(
        {dtype, {{1, 18, 13, 11}, {{4, 4}, {3, 3}, {1, 1}, {2, 0, 1, 3}}}, to_residual, memories});
  }
  return samples;
}

inline DepthwiseGradientSamples depthwise_weight_samples(DataType dtype) {
  const auto& [plain, fused] = kWeightFusions;
  DepthwiseGradientSamples samples{
      "depthwise_conv2d.grad_weight", "depthwise_conv2d.backward", gpu::depthwise_generated_weight(), {}};
  for (const Memory memory : kSampledMemories) {
    const Memories memories = Memories::all(memory);
    samples.problems.push_back({dtype, {{2, 20, 9, 14}, centered(4)}, plain, memories});
    samples.problems.push_back({dtype, {{2, 24, 17, 11}, centered(3, 2)}, fused, memories});
  }
  return samples;
}

using PointwiseGradientSamples = GeneratedSamples<BackwardCase<PointwiseGeometry>, PointwiseBackwardArguments>;

/// Rows of runs, and others.
inline PointwiseGradientSamples pointwise_input_samples(DataType dtype) {
  const auto& [plain, to_batch_norm, to_residual] = kInputFusions;
  PointwiseGradientSamples samples{"pointwise_conv2d.backward", nullptr, pointwise_backward_generated(), {}};
  for (const Memory memory : kSampledMemories) {
    const Memories memories = Memories::all(memory);
    samples.problems.push_back({dtype, {{2, 24, 8, 10}, 72}, plain, memories});
    samples.problems.push_back({dtype, {{2, 96, 12, 14}, 40}, to_batch_norm, memories});
    samples.problems.push_back({dtype, {{1, 66, 5, 7}, 70, 2}, to_residual, memories});
    samples.problems.push_back({dtype, {{2, 56, 7, 7}, 40, 1, true}, to_batch_norm, memories});
  }
  return samples;
}

inline PointwiseGradientSamples pointwise_input_fragments_samples(DataType dtype) {
  const auto& [plain, to_batch_norm, to_residual] = kInputFusions;
  PointwiseGradientSamples samples{"pointwise_conv2d.backward", nullptr, pointwise_backward_generated(), {}, true};
  if (dtype == DataType::float64) return samples;
  const Memories memories = Memories::all(Memory::channels_last);
  samples.problems = {{dtype, {{2, 24, 8, 10}, 72, 1, true}, plain, memories},
                      {dtype, {{2, 96, 12, 14}, 40, 1, true}, to_batch_norm, memories},
                      {dtype, {{1, 64, 5, 7}, 96, 2, true}, to_residual, memories}};
  if (size_of(dtype) == 2) {
    samples.problems.push_back({dtype, {{2, 34, 6, 7}, 46}, to_batch_norm, memories});
    samples.problems.push_back({dtype, {{1, 60, 5, 5}, 172, 2}, plain, memories});
  }
  return samples;
}

inline PointwiseGradientSamples pointwise_weight_samples(DataType dtype) {
  const auto& [plain, fused] = kWeightFusions;
  PointwiseGradientSamples samples{"pointwise_conv2d.backward", nullptr, pointwise_backward_generated(), {}};
  for (const Memory memory : kSampledMemories) {
    const Memories memories = Memories::all(memory);
    samples.problems.push_back({dtype, {{2, 72, 8, 10}, 40}, plain, memories});
    samples.problems.push_back({dtype, {{2, 40, 12, 14}, 96}, fused, memories});
    samples.problems.push_back({dtype, {{3, 66, 5, 7}, 70, 2, true}, fused, memories});
  }
  return samples;
}

/// Of all that there are for a problem a few that are far apart.
template <class Samples, class Arguments>
tuning::Configs sampled(const Samples& samples, const Arguments& arguments, std::size_t problem) {
  tuning::Configs configs = samples.kernel.configs(arguments), some;
  std::erase_if(configs,
                [&](const tuning::Config& config) { return tuning::is_fragment_tiling(config) != samples.fragments; });
  const std::size_t most = samples.fragments ? 3 : 2, step = configs.size() / most;
  for (std::size_t i = 0; i < most && i < configs.size(); ++i) {
    some.push_back(configs[(i * step + problem) % configs.size()]);
  }
  return some;
}

/// The arguments of a problem, as plans are made for them.
template <class Geometry>
auto arguments_of_problem(const ForwardCase<Geometry>& problem) {
  return ForwardTensors<Geometry>(problem).arguments(problem);
}
template <class Geometry>
auto arguments_of_problem(const BackwardCase<Geometry>& problem) {
  return BackwardTensors<Geometry>(problem).arguments(problem);
}

}  // namespace fusedsc::reference
