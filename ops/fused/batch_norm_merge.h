/// BatchNorm of a batch that is spread over several processes: what each of them has found of its part becomes what all
/// of them normalise with. How it gets from one to the others is the caller's business.
#pragma once

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

/// Statistics of the parts, merged in their order by Chan's formula, and what follows from them. Vectors are of the
/// accumulation type, [C] where nothing else is said.
struct BatchNormMergeArguments {
  /// Of each part one after the other: [C] mean, [C] sums of squared deviations from it, and one number, how many
  /// values per channel these are of. That may be none.
  ConstChannelVector parts;
  std::int64_t count = 0;           ///< of parts
  ConstChannelVector weight, bias;  ///< or empty for 1 and 0
  double eps = 0;
  ChannelVector mean;                            ///< written
  ChannelVector invstd, variance, scale, shift;  ///< written, as of a Normaliser
};
void batch_norm_merge(const BatchNormMergeArguments& arguments, const Execution& execution);

/// The coefficients of a gradient prologue from the sums of all parts.
struct BatchNormMergeGradientArguments {
  ConstChannelVector sums;    ///< [2*C + 1]: of g, of g*(x - mean), and how many values per channel these are of
  ConstChannelVector weight;  ///< or empty for 1
  ConstChannelVector mean, invstd;
  ChannelVector grad_scale, output_scale, offset;  ///< written, as of a GradientNormaliser in training
};
void batch_norm_merge_gradient(const BatchNormMergeGradientArguments& arguments, const Execution& execution);

}  // namespace fusedsc
