/// Gradients of depthwise convolutions of float32 channels_last tensors on Hopper GPUs, for what kernels there are.
#pragma once

#include <optional>

#include "fusedsc/backward/depthwise.h"

namespace fusedsc::gpu::hopper {

/// Gradients of the weight and the bias; nothing where these arguments are for other kernels.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_columns_weight(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc::gpu::hopper
