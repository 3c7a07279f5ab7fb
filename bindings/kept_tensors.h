/// What fusedsc.fold_batch_norms has had made of tensors that a model holds: BatchNorms' statistics, folded, and
/// parameters in autocast's dtype. It is kept, and read in place of being made at every call, by ordinary calls and by
/// CUDA graphs alike. With gradients, and of tensors that have changed in a way that PyTorch counts, nothing kept is
/// read any more.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <optional>
#include <vector>

namespace fusedsc::aten {

/// Each BatchNorm is [weight, bias, running_mean, running_var].
using BatchNormVectors = c10::List<std::optional<at::Tensor>>;

/// What is kept of these, or else what `fold` makes: kept, too, within fold_batch_norms.
///
/// `counters` are the BatchNorms' num_batches_tracked, or None: PyTorch's own batch_norm moves running statistics in
/// training without counting it, but nn.BatchNorm2d's addition to these is counted.
at::Tensor kept_or_folded(const BatchNormVectors& batch_norms, const BatchNormVectors& counters,
                          at::ArrayRef<double> eps, at::ScalarType accumulation,
                          const std::function<at::Tensor()>& fold);

/// What is kept of these parameters of a block in this dtype; within fold_batch_norms what `cast` makes, which is kept.
/// Otherwise None: they are to be cast. `numbers` say what `cast` does besides.
std::optional<std::vector<at::Tensor>> kept_casts(at::TensorList parameters, at::ArrayRef<double> numbers,
                                                  at::ScalarType dtype,
                                                  const std::function<std::vector<at::Tensor>()>& cast);

/// A BatchNorm in training has moved its statistics: what was kept of it is read no more.
void forget_kept(const std::optional<at::Tensor>& running_var);

/// Whether anyone wants to know which parameters are differentiated.
bool notes_gradients();
void note_gradients(const std::vector<at::Tensor>& parameters);

/// An operator runs with gradients, if they are on: what changes its parameters next may be something that PyTorch does
/// not count.
template <class... OptionalsOrTensors>
void note_parameters(const OptionalsOrTensors&... parameters) {
  if (!at::GradMode::is_enabled() || !notes_gradients()) return;
  std::vector<at::Tensor> given;
  for (const std::optional<at::Tensor>& parameter : {std::optional<at::Tensor>(parameters)...}) {
    if (parameter) given.push_back(*parameter);
  }
  note_gradients(given);
}

}  // namespace fusedsc::aten
