/// Depthwise convolution of contiguous tensors on Hopper GPUs, for what kernels there are.
#pragma once

#include <optional>

#include "fusedsc/forward/depthwise.h"

namespace fusedsc::gpu::hopper {

/// Nothing where these arguments are for other kernels.
std::optional<Plan<DepthwiseArguments>> plan_depthwise_planes(const DepthwiseArguments& a);

}  // namespace fusedsc::gpu::hopper
