/// The code generator of depthwise convolution, forward: from a problem and a tiling to the text of a kernel, of the
/// same device headers as the kernels that are compiled with the library. Nothing here needs a GPU or a compiler.
#pragma once

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise/generated/depthwise_rows_text.h"

namespace fusedsc::generated {

/// Empty, or why there is no text for such a problem.
std::string why_no_depthwise_text(const DepthwiseArguments& a);

tuning::Configs depthwise_configs(const DepthwiseArguments& a, const DepthwiseTarget& target);

/// Throws Unsupported where the config does not fit the problem.
DepthwiseText depthwise_text(const DepthwiseArguments& a, const DepthwiseTarget& target, const tuning::Config& config);

}  // namespace fusedsc::generated
