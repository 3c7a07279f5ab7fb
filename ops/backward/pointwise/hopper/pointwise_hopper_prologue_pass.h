/// Pointwise convolution on Hopper GPUs, backward: each of the prologues as a pass of its own.
#pragma once

#include "fusedsc/backward/pointwise.h"

namespace fusedsc::gpu::hopper {

/// The most channels that it takes.
inline std::int64_t most_prologue_pass_outputs(DataType dtype) {
  constexpr std::int64_t kMostBytes = 4096;
  return kMostBytes / static_cast<std::int64_t>(size_of(dtype));
}

/// to = gradient_prologue(grad_y), dense and channels_last. Both tensors are channels_last, with rows at multiples of
/// 16 bytes.
void launch_gradient_prologue(const PointwiseBackwardArguments& arguments, void* to, void* stream);

/// to = prologue(x), likewise.
void launch_activation_prologue(const PointwiseBackwardArguments& arguments, void* to, void* stream);

}  // namespace fusedsc::gpu::hopper
