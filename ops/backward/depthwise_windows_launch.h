/// Gradients of depthwise convolutions on GPUs with any window whose tiles fit block memory.
#pragma once

#include <optional>

#include "fusedsc/backward/depthwise.h"

namespace fusedsc::gpu {

/// Nothing where they do not.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_windows_input(const DepthwiseBackwardArguments& a);
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_windows_weight(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc::gpu
