/// BatchNorms' statistics that fusedsc.fold_batch_norms has had folded: they are kept, and read in place of being
/// folded at every call, by ordinary calls and by CUDA graphs alike.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace fusedsc::aten {

/// Each BatchNorm is [weight, bias, running_mean, running_var].
using BatchNormVectors = c10::List<std::optional<at::Tensor>>;

/// What is kept of these, or else what `fold` makes: kept, too, within fold_batch_norms. With gradients, and of tensors
/// that have changed in a way that PyTorch counts, nothing kept is read any more.
///
/// `counters` are the BatchNorms' num_batches_tracked, or None: PyTorch's own batch_norm moves running statistics in
/// training without counting it, but nn.BatchNorm2d's addition to these is counted.
at::Tensor kept_or_folded(const BatchNormVectors& batch_norms, const BatchNormVectors& counters,
                          at::ArrayRef<double> eps, at::ScalarType accumulation,
                          const std::function<at::Tensor()>& fold);

/// A BatchNorm in training has moved its statistics: what was kept of it is read no more.
void forget_kept(const std::optional<at::Tensor>& running_var);

}  // namespace fusedsc::aten
