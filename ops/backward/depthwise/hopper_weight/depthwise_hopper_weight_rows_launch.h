/// Launches of the second pass of depthwise weight gradients (depthwise_hopper_weight_rows_kernel.h).
#pragma once

#include "fusedsc/backward/depthwise.h"

namespace fusedsc::gpu::hopper {

/// partials: `rows` rows of [tap...][channel], `row_taps` of them, behind which that of the bias may be.
void launch_sum_weight_rows(const char* name, const float* partials, int rows, int row_taps,
                            const DepthwiseBackwardArguments& a, void* stream);

}  // namespace fusedsc::gpu::hopper
