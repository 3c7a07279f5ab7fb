/// Several tensors cast at once, as autocast wants a block's weights.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <map>
#include <vector>

#include "autograd.h"
#include "fusedsc/fused/cast.h"
#include "operators.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {
namespace {

bool is_known(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble;
}

/// As runs of elements; nothing where a tensor is none, or lies in another order than what it is cast to.
CastArguments as_runs(at::TensorList tensors, const std::vector<Tensor>& results) {
  const auto run_of = [](const Tensor& tensor) {
    return tensor.as_strided({1, 1, 1, tensor.numel()}, {tensor.numel(), tensor.numel(), tensor.numel(), 1});
  };
  CastArguments arguments;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor& from = tensors[i];
    if (!is_known(from.scalar_type()) || !is_known(results[i].scalar_type()) || !from.is_non_overlapping_and_dense() ||
        from.strides() != results[i].strides() || from.numel() == 0 || from.device() != tensors[0].device()) {
      return {};
    }
    arguments.runs.emplace_back(view(run_of(from)), mutable_view(run_of(results[i])));
  }
  return arguments;
}

std::vector<Tensor> cast_kernel(at::TensorList tensors, at::ScalarType dtype) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : tensors) results.push_back(at::empty_like(tensor, tensor.options().dtype(dtype)));
  if (results.empty()) return results;
  if (tensors[0].is_cuda()) {  // several times as fast as copies, whose blocks go over many elements each
    const CastArguments arguments = as_runs(tensors, results);
    if (!arguments.runs.empty() && why_not_cast(arguments).empty()) {
      const c10::DeviceGuard guard(tensors[0].device());
      fusedsc::cast(arguments, execution_on(tensors[0].device()));
      return results;
    }
  }
  at::_foreach_copy_(results, tensors);
  return results;
}

struct Cast : torch::autograd::Function<Cast> {
  static variable_list forward(AutogradContext* context, at::TensorList tensors, at::ScalarType dtype) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->set_materialize_grads(false);
    std::vector<std::int64_t> dtypes;
    for (const Tensor& tensor : tensors) dtypes.push_back(static_cast<std::int64_t>(tensor.scalar_type()));
    context->saved_data["dtypes"] = dtypes;
    return cast(tensors, dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto dtypes = context->saved_data["dtypes"].toIntVector();
    std::map<std::int64_t, std::vector<std::size_t>> by_dtype;
    for (std::size_t i = 0; i < grad_outputs.size(); ++i) {
      if (grad_outputs[i].defined()) by_dtype[dtypes[i]].push_back(i);
    }
    variable_list gradients(grad_outputs.size() + 1);
    for (const auto& [dtype, places] : by_dtype) {
      variable_list alike;
      for (const std::size_t i : places) alike.push_back(grad_outputs[i]);
      const variable_list results = cast(alike, static_cast<at::ScalarType>(dtype));
      for (std::size_t i = 0; i < places.size(); ++i) gradients[places[i]] = results[i];
    }
    return gradients;
  }
};

std::vector<Tensor> cast_autograd(at::TensorList tensors, at::ScalarType dtype) { return Cast::apply(tensors, dtype); }

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CompositeExplicitAutograd, m) { m.impl("_cast", cast_kernel); }
TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) { m.impl("_cast", cast_autograd); }

}  // namespace fusedsc::aten
