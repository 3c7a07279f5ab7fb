/// Depthwise convolution of small problems on GPUs: one output per thread, or a few.
#pragma once

#include <optional>

#include "fusedsc/forward/depthwise.h"

namespace fusedsc::gpu {

/// Whether the problem is small, and there is a kernel for it.
bool suits_depthwise_direct(const DepthwiseArguments& a);

/// Nothing where it does not suit.
std::optional<Plan<DepthwiseArguments>> plan_depthwise_direct(const DepthwiseArguments& a);

}  // namespace fusedsc::gpu
