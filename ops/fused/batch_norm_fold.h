/// BatchNorms in eval mode as their blocks' operators read them, several at once: on a GPU by one launch, in which each
/// takes as long as all.
#pragma once

#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// One BatchNorm, as its module has it. Each vector is [channels] of any type.
struct FoldedBatchNorm {
  std::int64_t channels = 0;
  ConstChannelVector weight, bias;  ///< or empty for 1 and 0
  ConstChannelVector mean;          ///< the running one; or empty for 0
  ConstChannelVector variance;      ///< the running one; or empty, whatever eps is, for what makes invstd 1
  double eps = 1e-5;
};

struct BatchNormFoldArguments {
  std::vector<FoldedBatchNorm> batch_norms;
  /// Written, [1, 1, 5, channels of all], of an accumulation type, elements of a row neighbours. Its rows are
  ///   mean, invstd = 1/sqrt(variance + eps), variance, scale = weight*invstd and shift = bias - mean*scale;
  /// each has the channels of one BatchNorm behind those of the one before.
  TensorView statistics;
};

/// The rows of `statistics`.
enum class StatisticsRow : int { mean, invstd, variance, scale, shift, count };

void fold_batch_norms(const BatchNormFoldArguments& arguments, const Execution& execution);
std::vector<Candidate> explain_fold_batch_norms(const BatchNormFoldArguments& arguments);

}  // namespace fusedsc
