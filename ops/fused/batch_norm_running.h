/// The running statistics of BatchNorms after a training pass, of several at once: on a GPU by one launch, in which
/// each takes as long as all.
#pragma once

#include <cstdint>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// One BatchNorm, as its module has it.
struct RunningBatchNorm {
  std::int64_t channels = 0;
  ChannelVector mean, variance;     ///< written, [channels] of any type; or both empty: nothing is tracked
  std::int64_t* batches = nullptr;  ///< one more afterwards; in the vectors' memory; or null
  /// running = (1 - momentum) * running + momentum * batch's.
  double momentum = 0.1;
  /// The mean of all batches instead: the momentum is 1/batches, which must be given.
  bool is_cumulative = false;
};

struct BatchNormRunningArguments {
  std::vector<RunningBatchNorm> batch_norms;
  /// The batch's, of an accumulation type: those of one BatchNorm behind those of the one before. Both empty after an
  /// empty batch, which is counted, and moves nothing.
  ConstChannelVector mean, variance;
  Device device = Device::cpu;
};

/// As nn.BatchNorm2d moves them: what the batch has is first rounded to the type of what is written.
void update_running_statistics(const BatchNormRunningArguments& arguments, const Execution& execution);
std::vector<Candidate> explain_update_running_statistics(const BatchNormRunningArguments& arguments);

}  // namespace fusedsc
