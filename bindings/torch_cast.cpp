/// Several tensors cast at once, as autocast wants a block's weights: on a GPU one launch, where each takes as long as
/// all.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <map>
#include <vector>

#include "autograd.h"
#include "operators.h"

namespace fusedsc::aten {
namespace {

std::vector<Tensor> cast_kernel(at::TensorList tensors, at::ScalarType dtype) {
  std::vector<Tensor> results;
  for (const Tensor& tensor : tensors) results.push_back(at::empty_like(tensor, tensor.options().dtype(dtype)));
  if (!results.empty()) at::_foreach_copy_(results, tensors);
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
