/// Depthwise kernels of the registry, each by force.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "gpu/forced.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {

inline constexpr const char *kForwardRole = "depthwise_conv2d.forward", *kBackwardRole = "depthwise_conv2d.backward",
                            *kInputRole = "depthwise_conv2d.grad_input", *kWeightRole = "depthwise_conv2d.grad_weight";

using DepthwiseForwardCase = ForwardCase<DepthwiseGeometry>;
using DepthwiseBackwardCase = BackwardCase<DepthwiseGeometry>;

inline void verify_forward_by(const DepthwiseForwardCase& problem, const std::string& choice) {
  verify_by(kForwardRole, choice, [&] { verify_forward(problem); });
}

/// role: of one gradient, or of all that are wanted.
inline void verify_backward_by(const DepthwiseBackwardCase& problem, const char* role, const std::string& choice) {
  verify_by(role, choice, [&] { verify_backward(problem); });
}

inline std::vector<tuning::Kernel<DepthwiseArguments>> able_forward(const DepthwiseForwardCase& problem,
                                                                    const Names& names = {}) {
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  return able(gpu::depthwise_gpu_kernels(), tensors.arguments(problem), names);
}

inline std::vector<tuning::Kernel<DepthwiseBackwardArguments>> able_backward(const DepthwiseBackwardCase& problem,
                                                                             const char* role,
                                                                             const Names& names = {}) {
  BackwardTensors<DepthwiseGeometry> tensors(problem);
  const std::string_view name = role;
  const auto kernels = name == kInputRole    ? gpu::depthwise_input_kernels()
                       : name == kWeightRole ? gpu::depthwise_weight_kernels()
                                             : depthwise_backward_kernels();
  return able(kernels, tensors.arguments(problem), names);
}

/// Each case by every kernel that can, of those named or of all, with the config that it would be taken with. Returns
/// how many runs that were.
inline int verify_forward_by_each(const std::vector<DepthwiseForwardCase>& cases, const Names& names = {}) {
  int runs = 0;
  for_each_case(cases, [&](const DepthwiseForwardCase& problem) {
    for (const auto& kernel : able_forward(problem, names)) {
      verify_forward_by(problem, kernel.name);
      ++runs;
      if (testing::Test::HasFailure()) return;
    }
  });
  return runs;
}

inline int verify_backward_by_each(const std::vector<DepthwiseBackwardCase>& cases,
                                   std::initializer_list<const char*> roles, const Names& names = {}) {
  int runs = 0;
  for_each_case(cases, [&](const DepthwiseBackwardCase& problem) {
    for (const char* role : roles) {
      for (const auto& kernel : able_backward(problem, role, names)) {
        verify_backward_by(problem, role, kernel.name);
        ++runs;
        if (testing::Test::HasFailure()) return;
      }
    }
  });
  return runs;
}

/// Each case by every kernel that can: of all gradients at once, and of each of them alone, two kernels at a time.
inline void verify_backward_by_all(const std::vector<DepthwiseBackwardCase>& cases) {
  for_each_case(cases, [&](const DepthwiseBackwardCase& problem) {
    for (const auto& kernel : able_backward(problem, kBackwardRole)) {
      if (kernel.name != std::string_view("gpu_separate")) verify_backward_by(problem, kBackwardRole, kernel.name);
      if (testing::Test::HasFailure()) return;
    }
    const auto inputs = able_backward(problem, kInputRole), weights = able_backward(problem, kWeightRole);
    for (std::size_t i = 0; i < std::max(inputs.size(), weights.size()); ++i) {
      if (weights.empty()) {
        verify_backward_by(problem, kInputRole, inputs[i].name);
      } else if (inputs.empty()) {
        verify_backward_by(problem, kWeightRole, weights[i].name);
      } else {
        SCOPED_TRACE(inputs[i % inputs.size()].name);
        const Forced input(kInputRole, inputs[i % inputs.size()].name);
        verify_backward_by(problem, kWeightRole, weights[i % weights.size()].name);
      }
      if (testing::Test::HasFailure()) return;
    }
  });
}

/// Whether the GPU, or what plays one, has the kernels of Hopper GPUs, and these kernels of such a type.
inline bool has_hopper(DataType dtype) {
  const DepthwiseGeometry geometry{{1, 8, 8, 8}, centered(3)};
  const Memory memory = size_of(dtype) == 2 ? Memory::channels_last : Memory::contiguous;
  return !able_forward({dtype, geometry, {}, Memories::all(memory)}, {"hopper_planes", "hopper_patches"}).empty();
}

}  // namespace fusedsc::reference
