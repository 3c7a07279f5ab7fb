/// Pointwise kernels of the registry, by force.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "gpu/forced_suites.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {

inline constexpr const char *kPointwiseForward = "pointwise_conv2d.forward",
                            *kPointwiseBackward = "pointwise_conv2d.backward",
                            *kPointwiseInput = "pointwise_conv2d.grad_input",
                            *kPointwiseWeight = "pointwise_conv2d.grad_weight";

using PointwiseForwardCase = ForwardCase<PointwiseGeometry>;
using PointwiseBackwardCase = BackwardCase<PointwiseGeometry>;

inline std::map<std::string, int> verify_pointwise_forward(const std::vector<PointwiseForwardCase>& cases,
                                                           const Names& names = {}, std::size_t most_on_host = 1) {
  return verify_forward_by_kernels(kPointwiseForward, gpu::pointwise_gpu_kernels(), cases, names, most_on_host);
}

inline std::map<std::string, int> verify_pointwise_backward(const std::vector<PointwiseBackwardCase>& cases,
                                                            const Names& names = {}, std::size_t most_on_host = 1) {
  return verify_backward_by_kernels(kPointwiseBackward, pointwise_backward_kernels(), cases, names, most_on_host);
}

/// Whether the GPU, or what plays one, has the kernels of Hopper GPUs for this type.
inline bool has_hopper_pointwise(DataType dtype) {
  const PointwiseForwardCase problem{
      dtype, {{1, 16, 8, 8}, 16, 1, dtype == DataType::float32}, {}, Memories::all(Memory::channels_last)};
  ForwardTensors<PointwiseGeometry> tensors(problem);
  return !able(gpu::pointwise_gpu_kernels(), tensors.arguments(problem), {"hopper_resident"}).empty();
}

}  // namespace fusedsc::reference
