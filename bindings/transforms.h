/// What the operators' derivatives do not go with: forward-mode derivatives, and the transforms of torch.func.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fusedsc::aten {

/// Whether torch.func transforms what runs now in this thread.
bool is_transformed();
/// Throws inside of torch.func's grad, jvp or vmap.
void refuse_functorch(const char* op);
/// Throws that there are no forward-mode derivatives.
[[noreturn]] void refuse_forward_mode(const char* op);

namespace detail {
inline bool has_tangent(const at::Tensor& tensor) { return tensor.defined() && tensor._fw_grad(/*level=*/0).defined(); }
inline bool has_tangent(const std::optional<at::Tensor>& tensor) { return tensor && has_tangent(*tensor); }
template <class Tensors>
bool has_tangent(const Tensors& tensors) {
  for (const std::optional<at::Tensor> tensor : tensors) {  // a copy, whatever the list has
    if (has_tangent(tensor)) return true;
  }
  return false;
}
}  // namespace detail

/// The first thing that an operator with a gradient of its own asks: throws where it is called inside of a transform
/// that it does not have, or on tensors with forward-mode derivatives. libtorch would say so in words of its own, which
/// name neither the operator nor a way out. `op` is the name that users know.
template <class... Tensors>
void refuse_transforms(const char* op, const Tensors&... tensors) {
  refuse_functorch(op);
  if ((detail::has_tangent(tensors) || ...)) refuse_forward_mode(op);
}

}  // namespace fusedsc::aten
