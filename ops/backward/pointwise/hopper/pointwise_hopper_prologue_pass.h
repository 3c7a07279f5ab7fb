/// Pointwise convolution on Hopper GPUs, backward: each of the prologues as a pass of its own.
#pragma once

#include <string>

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

/// Why the gradient prologue cannot be a pass of its own, or is not worth one; empty: it is. It is for two gradients of
/// many outputs; of float32, for an input gradient of so many channels that several blocks would apply it to the same
/// elements.
std::string why_not_prologue_pass(const PointwiseBackwardArguments& arguments);

/// Such a pass, and behind it what plan_rest makes of what is left.
using PlanGradients = Plan<PointwiseBackwardArguments> (*)(const PointwiseBackwardArguments& arguments, int threads);
Plan<PointwiseBackwardArguments> plan_behind_prologue_pass(const PointwiseBackwardArguments& arguments,
                                                           PlanGradients plan_rest, int threads);

}  // namespace fusedsc::gpu::hopper
