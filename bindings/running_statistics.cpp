#include "running_statistics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "arguments.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/batch_norm_running.h"
#include "kept_tensors.h"
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

at::Tensor fold_running(const TensorOptionals& batch_norms, const TensorOptionals& counters, at::ArrayRef<double> eps,
                        const at::Tensor& x) {
  const at::ScalarType type = accumulation_type(x.scalar_type());
  return kept_or_folded(batch_norms, counters, eps, type,
                        [&] { return fold_batch_norms(batch_norms, eps, type == at::kDouble); });
}

namespace {

/// Whether a vector's memory may be written by a kernel of ours, beside that of the statistics.
bool is_writable(const at::Tensor& buffer, const at::Tensor& statistics) {
  return is_plain(buffer) && buffer.device() == statistics.device() && buffer.is_contiguous() &&
         !buffer.requires_grad() && !buffer._is_zerotensor();
}

bool is_count(const at::Tensor& counter) { return counter.scalar_type() == at::kLong && counter.numel() == 1; }

bool are_the_same(const std::optional<at::Tensor>& a, const std::optional<at::Tensor>& b) {
  return a && b && a->is_same(*b);
}

/// By one launch for all of them. False, and nothing is done, where that is not to be had: tensors that are traced, or
/// that are not where the statistics are.
bool update_directly(const at::Tensor& statistics, at::ArrayRef<RunningUpdate> updates, bool empty_batch) {
  if (!is_plain(statistics)) return false;
  for (const auto& [running, channels, momentum] : updates) {
    if (!channels.maybe_as_int()) return false;
    for (const auto* buffer : {&running.mean, &running.var, &running.num_batches_tracked}) {
      if (*buffer && !is_writable(**buffer, statistics)) return false;
    }
    if (running.num_batches_tracked && !is_count(*running.num_batches_tracked)) return false;
  }
  // A BatchNorm that a chain has twice moves twice, one after the other.
  for (std::size_t i = 1; i < updates.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (are_the_same(updates[i].running.mean, updates[j].running.mean)) return false;
    }
  }
  BatchNormRunningArguments arguments;
  arguments.device = statistics.is_cpu() ? Device::cpu : Device::gpu;
  if (!empty_batch) {
    arguments.mean = mutable_row(statistics, 0);
    arguments.variance = mutable_row(statistics, 2);
  }
  arguments.batch_norms.reserve(updates.size());
  for (const auto& [running, channels, momentum] : updates) {
    RunningBatchNorm& norm = arguments.batch_norms.emplace_back();
    norm.channels = *channels.maybe_as_int();
    if (running.mean) {
      norm.mean = mutable_channels(*running.mean);
      norm.variance = mutable_channels(*running.var);
    }
    if (running.num_batches_tracked) norm.batches = running.num_batches_tracked->mutable_data_ptr<std::int64_t>();
    norm.momentum = momentum.value_or(0);
    norm.is_cumulative = !momentum && running.mean;
  }
  const c10::DeviceGuard guard(statistics.device());
  update_running_statistics(arguments, execution_on(statistics.device()));
  // What autograd has kept of them, if anything, is no longer what it was.
  for (const auto& update : updates) {
    for (const auto* buffer : {&update.running.mean, &update.running.var, &update.running.num_batches_tracked}) {
      if (*buffer && !(*buffer)->is_inference()) (*buffer)->unsafeGetTensorImpl()->bump_version();
    }
  }
  return true;
}

// An operator over a list of tensors may work on all of them at once, and does on a GPU: none may be in the list twice.

bool is_among(const std::vector<at::Tensor>& tensors, const at::Tensor& tensor) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& other) { return other.is_same(tensor); });
}

void add_one(std::vector<at::Tensor>& counters) {
  if (!counters.empty()) at::_foreach_add_(counters, 1);
  counters.clear();
}

/// Buffers that are to move towards their targets.
struct Moves {
  std::vector<at::Tensor> buffers, targets;

  void make(double momentum) {
    if (!buffers.empty()) at::_foreach_lerp_(buffers, targets, momentum);
    buffers.clear(), targets.clear();
  }
};

}  // namespace

void update_running(const at::Tensor& statistics, at::ArrayRef<RunningUpdate> updates, bool empty_batch) {
  for (const RunningUpdate& update : updates) forget_kept(update.running.var);
  if (update_directly(statistics, updates, empty_batch)) return;
  std::vector<at::Tensor> counters;
  for (const RunningUpdate& update : updates) {
    if (!update.running.num_batches_tracked) continue;
    if (is_among(counters, *update.running.num_batches_tracked)) add_one(counters);
    counters.push_back(*update.running.num_batches_tracked);
  }
  add_one(counters);
  if (empty_batch) return;

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
      // In the order of the updates: whatever its momentum is, it may have been moved before.
      for (auto& [other, moves] : by_momentum) {
        if (is_among(moves.buffers, buffer)) moves.make(other);
      }
      if (momentum) {
        Moves& moves = by_momentum[*momentum];
        moves.buffers.push_back(buffer);
        moves.targets.push_back(target);
      } else {
        buffer.lerp_(target, running.num_batches_tracked->to(buffer.scalar_type()).reciprocal());
      }
    }
  }
  for (auto& [momentum, moves] : by_momentum) moves.make(momentum);
}

}  // namespace fusedsc::aten
