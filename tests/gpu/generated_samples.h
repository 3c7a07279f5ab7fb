/// Problems and configs of generated kernels that are run by tests. Where nothing is compiled at run time, their texts
/// are compiled with the tests (tests/generated/make_samples.cpp): both go over this list.
#pragma once

#include <string>
#include <vector>

#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "gpu/gpu_under_test.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {

template <class Geometry>
std::vector<ForwardCase<Geometry>> generated_problems(DataType dtype);

template <>
inline std::vector<ForwardCase<PointwiseGeometry>> generated_problems(DataType dtype) {
  using enum ForwardSeams::Output;
  const ForwardSeams biased{.bias = true},
      fused{.prologue = true,
            .activation = Activation::relu6,
            .output = epilogue,
            .epilogue_activation = Activation::relu,
            .residual = true},
      training{.bias = true, .prologue = true, .activation = Activation::relu, .output = statistics};
  std::vector<ForwardCase<PointwiseGeometry>> problems;
  for (const Memory memory : {Memory::channels_last, Memory::contiguous}) {
    const Memories memories = Memories::all(memory);
    problems.push_back({dtype, {{2, 24, 7, 7}, 40}, biased, memories});
    problems.push_back({dtype, {{1, 56, 8, 10}, 64}, fused, memories});
    problems.push_back({dtype, {{2, 32, 12, 14}, 96}, training, memories});
    problems.push_back({dtype, {{1, 66, 5, 7}, 70, 2}, {}, memories});
  }
  return problems;
}

template <>
inline std::vector<ForwardCase<DepthwiseGeometry>> generated_problems(DataType dtype) {
  using enum ForwardSeams::Output;
  const ForwardSeams biased{.bias = true},
      fused{.prologue = true, .activation = Activation::silu, .output = epilogue, .residual = true},
      training{.bias = true, .prologue = true, .activation = Activation::relu6, .output = statistics};
  std::vector<ForwardCase<DepthwiseGeometry>> problems;
  for (const Memory memory : {Memory::channels_last, Memory::contiguous}) {
    const Memories memories = Memories::all(memory);
    problems.push_back({dtype, {{2, 24, 11, 13}, centered(3)}, biased, memories});
    problems.push_back({dtype, {{1, 20, 9, 14}, centered(4)}, fused, memories});
    problems.push_back({dtype, {{2, 17, 16, 10}, centered(5, 2)}, training, memories});
  }
  return problems;
}

/// Of all that there are for a problem a few that are far apart.
inline tuning::Configs sampled(const tuning::Configs& configs, std::size_t problem) {
  tuning::Configs some;
  constexpr std::size_t kMost = 2;
  const std::size_t step = configs.size() / kMost;
  for (std::size_t i = 0; i < kMost && i < configs.size(); ++i) {
    some.push_back(configs[(i * step + problem) % configs.size()]);
  }
  return some;
}

/// The arguments of a problem, as plans are made for them.
template <class Geometry>
auto arguments_of_problem(const ForwardCase<Geometry>& problem) {
  ForwardTensors<Geometry> tensors(problem);
  return tensors.arguments(problem);
}

}  // namespace fusedsc::reference
