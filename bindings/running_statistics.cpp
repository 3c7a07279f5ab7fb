#include "running_statistics.h"

#include <ATen/ATen.h>

#include <map>
#include <utility>
#include <vector>

#include "arguments.h"
#include "fusedsc/common/status.h"
#include "new_tensor.h"
#include "operators.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {

void RunningStatistics::check(const at::Tensor& x, const c10::SymInt& channels, bool training,
                              std::optional<double> momentum) const {
  fusedsc::check(mean.has_value() == var.has_value(),
                 "running_mean and running_var: only one is given; give both or neither");
  fusedsc::check(!training || !mean || momentum || num_batches_tracked,
                 "momentum: None (cumulative average) needs num_batches_tracked; give it, or a number as momentum");
  check_batch_norm_vector("running_mean", mean, x, channels);
  check_batch_norm_vector("running_var", var, x, channels);
}

at::Tensor fold_running(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, const at::Tensor& x) {
  return fold_batch_norms(batch_norms, eps, accumulation_type(x.scalar_type()) == at::kDouble);
}

void update_running(const at::Tensor& statistics, at::ArrayRef<RunningUpdate> updates, bool empty_batch) {
  std::vector<at::Tensor> counters;
  for (const RunningUpdate& update : updates) {
    if (update.running.num_batches_tracked) counters.push_back(*update.running.num_batches_tracked);
  }
  if (!counters.empty()) at::_foreach_add_(counters, 1);
  if (empty_batch) return;

  struct Moves {
    std::vector<at::Tensor> buffers, targets;
  };
  std::map<double, Moves> by_momentum;
  c10::SymInt first = 0;
  for (const auto& [running, channels, momentum] : updates) {
    const c10::SymInt own = first;
    first += channels;
    if (!running.mean) continue;
    const at::Tensor mean = piece_of_row(statistics, 0, own, channels),
                     variance = piece_of_row(statistics, 2, own, channels);
    for (const auto& [buffer, piece] : {std::pair(*running.mean, mean), std::pair(*running.var, variance)}) {
      const at::Tensor target = piece.scalar_type() == buffer.scalar_type() ? piece : piece.to(buffer.scalar_type());
      if (momentum) {
        Moves& moves = by_momentum[*momentum];
        moves.buffers.push_back(buffer);
        moves.targets.push_back(target);
      } else {
        buffer.lerp_(target, running.num_batches_tracked->to(buffer.scalar_type()).reciprocal());
      }
    }
  }
  for (const auto& [momentum, moves] : by_momentum) at::_foreach_lerp_(moves.buffers, moves.targets, momentum);
}

}  // namespace fusedsc::aten
