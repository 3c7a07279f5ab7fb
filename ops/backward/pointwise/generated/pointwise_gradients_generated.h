/// The code generator of pointwise convolution's gradients: from a problem and a tiling to the text of a kernel, of the
/// device headers of ../tiles and, of the input's gradient, of ../fragments. Nothing here needs a GPU or a compiler.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/forward/pointwise/generated/pointwise_fragments_text.h"

namespace fusedsc::generated {

/// Of grad_input or grad_weight, as the text.
tuning::Configs pointwise_gradient_configs(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                           tuning::Direction direction);

/// Throws Unsupported where the config does not fit the problem.
GeneratedText pointwise_gradient_text(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                      tuning::Direction direction, const tuning::Config& config);

}  // namespace fusedsc::generated
