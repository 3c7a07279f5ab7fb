/// BatchNorm's running statistics, outside the differentiable operators: read in eval mode, updated after training
/// ones.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <optional>

namespace fusedsc::aten {

/// The buffers of one BatchNorm; all absent with track_running_stats=False.
struct RunningStatistics {
  std::optional<at::Tensor> mean, var, num_batches_tracked;

  /// Throws where the buffers do not fit `channels`, or where training could not update them.
  void check(const at::Tensor& x, const c10::SymInt& channels, bool training, std::optional<double> momentum) const;
};

/// The statistics of BatchNorms in eval mode, each [weight, bias, running_mean, running_var]. They are folded again at
/// every call, unless fusedsc.fold_batch_norms has them kept: a CUDA graph that is replayed after a weight or a running
/// average has changed computes with what they are then. `counters` are their num_batches_tracked.
at::Tensor fold_running(const c10::List<std::optional<at::Tensor>>& batch_norms,
                        const c10::List<std::optional<at::Tensor>>& counters, at::ArrayRef<double> eps,
                        const at::Tensor& x);

/// A training pass of one BatchNorm.
struct RunningUpdate {
  RunningStatistics running;
  c10::SymInt channels;
  std::optional<double> momentum;  ///< None: the cumulative average
};
/// Moves the buffers as nn.BatchNorm2d does: all of them together, since on GPUs the launches are what takes time.
/// `statistics` has rows mean, invstd and unbiased variance, each of them with the channels of one BatchNorm after the
/// other. An empty batch is counted, and has no statistics.
void update_running(const at::Tensor& statistics, at::ArrayRef<RunningUpdate> updates, bool empty_batch);

/// y, for callers that have updated running statistics since it was made. torch.utils.checkpoint computes again until
/// it has what autograd kept, and no further: so where such hooks are set, something is kept behind the update, too,
/// and statistics move as often as those of PyTorch's BatchNorm.
at::Tensor keep_open(const at::Tensor& y);

}  // namespace fusedsc::aten
