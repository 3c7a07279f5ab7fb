#pragma once

#include "fusedsc/forward/depthwise.h"

namespace fusedsc::gpu {

/// Runs the pass if depthwise_matrix_kernel.h can and is worth it; false if not. Needs no workspace.
bool run_depthwise_matrix(const DepthwiseArguments& arguments, void* stream);

}  // namespace fusedsc::gpu
