/// The code generator of depthwise convolution's gradients: from a problem and a tiling to the text of a kernel, of the
/// device headers of ../rows. Nothing here needs a GPU or a compiler.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/forward/depthwise/generated/depthwise_rows_text.h"

namespace fusedsc::generated {

/// Empty, or why there is no text for such a problem.
std::string why_no_depthwise_gradient_text(const DepthwiseBackwardArguments& a);

/// Of grad_input or grad_weight, as the text.
tuning::Configs depthwise_gradient_configs(const DepthwiseBackwardArguments& a, const DepthwiseTarget& target,
                                           tuning::Direction direction);

/// Throws Unsupported where the config does not fit the problem.
DepthwiseText depthwise_gradient_text(const DepthwiseBackwardArguments& a, const DepthwiseTarget& target,
                                      tuning::Direction direction, const tuning::Config& config);

}  // namespace fusedsc::generated
