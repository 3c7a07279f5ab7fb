/// Pointwise convolution on Hopper GPUs, backward: the gradient prologue as a pass of its own.
#pragma once

#include "fusedsc/backward/pointwise.h"

namespace fusedsc::gpu::hopper {

/// The most outputs that it takes.
inline constexpr std::int64_t kMostSeamOutputs = 2048;

/// to = gradient_prologue(grad_y), dense and channels_last. Both tensors are channels_last, with rows at multiples of
/// 16 bytes.
void launch_gradient_seam(const PointwiseBackwardArguments& arguments, void* to, void* stream);

}  // namespace fusedsc::gpu::hopper
