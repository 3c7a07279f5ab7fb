/// Depthwise convolution on GPUs with any window whose tiles fit block memory.
#pragma once

#include <optional>

#include "fusedsc/forward/depthwise.h"

namespace fusedsc::gpu {

/// Nothing where they do not.
std::optional<Plan<DepthwiseArguments>> plan_depthwise_windows(const DepthwiseArguments& a);

}  // namespace fusedsc::gpu
