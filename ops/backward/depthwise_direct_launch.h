/// Depthwise convolution of small problems on GPUs, input gradient at stride 2. (At stride 1 it is a forward pass.)
#pragma once

#include <optional>

#include "fusedsc/backward/depthwise.h"

namespace fusedsc::gpu {

/// Whether the problem is small, and there is a kernel for its input gradient.
bool suits_depthwise_direct_input(const DepthwiseBackwardArguments& a);

/// Nothing where it does not suit.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_direct_input(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc::gpu
