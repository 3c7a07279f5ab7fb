/// Gradients of depthwise convolutions of contiguous tensors on Hopper GPUs, for what kernels there are.
#pragma once

#include <optional>

#include "fusedsc/backward/depthwise.h"

namespace fusedsc::gpu::hopper {

// Each is nothing where these arguments are for other kernels.

/// All gradients at once, at stride 1.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_planes_gradients(const DepthwiseBackwardArguments& a);
/// Gradients of the weight and the bias.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_planes_weight(const DepthwiseBackwardArguments& a);
/// At stride 2.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_planes_input(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc::gpu::hopper
