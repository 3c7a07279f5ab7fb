/// The statistics of BatchNorms in eval mode, of all those of a block at once.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "arguments.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/batch_norm_fold.h"
#include "operators.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

constexpr std::size_t kVectors = 4;
constexpr std::array<const char*, kVectors> kNames = {"weight", "bias", "running_mean", "running_var"};

/// The first vector of a BatchNorm that is given: the others are like it.
Tensor one_of(const TensorOptionals& batch_norms, std::size_t number) {
  for (std::size_t i = 0; i < kVectors; ++i) {
    if (const OptionalTensor vector = batch_norms.get(kVectors * number + i)) return *vector;
  }
  throw InvalidArgument("batch_norms: BatchNorm " + std::to_string(number) +
                        " has no tensor at all; give one of its weight, bias, running_mean and running_var at least");
}

Tensor fold_batch_norms_meta(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, bool is_double) {
  check(!eps.empty() && batch_norms.size() == kVectors * eps.size(), "batch_norms: ", batch_norms.size(),
        " tensors given with ", eps.size(),
        " values of eps; give weight, bias, running_mean and running_var (or None) ",
        "and one eps for each BatchNorm, of which there must be one at least");
  const Tensor first = one_of(batch_norms, 0);
  c10::SymInt channels = 0;
  for (std::size_t number = 0; number < eps.size(); ++number) {
    check(eps[number] >= 0, "eps: it is ", eps[number], "; it must not be negative");
    const Tensor like = one_of(batch_norms, number);
    check(like.dim() == 1, "batch_norms: a tensor of BatchNorm ", number, " has sizes ", like.sym_sizes(),
          "; give vectors, [channels]");
    for (std::size_t i = 0; i < kVectors; ++i) {
      check_batch_norm_vector(kNames[i], batch_norms.get(kVectors * number + i), first, like.sym_size(0));
    }
    channels += like.sym_size(0);
  }
  return at::empty_symint({5, channels}, first.options().dtype(is_double ? at::kDouble : at::kFloat));
}

Tensor fold_batch_norms_kernel(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, bool is_double) {
  const Tensor statistics = fold_batch_norms_meta(batch_norms, eps, is_double);
  if (statistics.numel() == 0) return statistics;
  BatchNormFoldArguments arguments;
  arguments.batch_norms.reserve(eps.size());
  std::vector<Tensor> kept;  // those that had gaps
  const auto vector = [&](std::size_t place) {
    const OptionalTensor tensor = batch_norms.get(place);
    if (!tensor) return ConstChannelVector();
    if (tensor->is_contiguous()) return channels(*tensor);
    kept.push_back(tensor->contiguous());
    return channels(kept.back());
  };
  for (std::size_t number = 0; number < eps.size(); ++number) {
    const std::size_t first = kVectors * number;
    arguments.batch_norms.push_back({one_of(batch_norms, number).size(0), vector(first), vector(first + 1),
                                     vector(first + 2), vector(first + 3), eps[number]});
  }
  arguments.statistics = mutable_matrix(statistics);
  const c10::DeviceGuard guard(statistics.device());
  fold_batch_norms(arguments, execution_on(statistics.device()));
  return statistics;
}

/// Without gradients: those of a BatchNorm's parameters are its block's to compute, in eval mode too, and running
/// statistics have none.
Tensor fold_batch_norms_autograd(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, bool is_double) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return fold_batch_norms(batch_norms, eps, is_double);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { m.impl("_fold_batch_norms", translated<fold_batch_norms_kernel>); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { m.impl("_fold_batch_norms", translated<fold_batch_norms_kernel>); }
TORCH_LIBRARY_IMPL(fusedsc, Meta, m) { m.impl("_fold_batch_norms", translated<fold_batch_norms_meta>); }
TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) { m.impl("_fold_batch_norms", translated<fold_batch_norms_autograd>); }

}  // namespace fusedsc::aten
