/// Depthwise convolution by products of matrices, for what kernels there are.
#pragma once

#include <optional>

#include "fusedsc/forward/depthwise.h"

namespace fusedsc::gpu {

/// Nothing where these arguments are for other kernels.
std::optional<Plan<DepthwiseArguments>> plan_depthwise_matrix(const DepthwiseArguments& a);

}  // namespace fusedsc::gpu
