/// Whether a backward pass may come: without one nothing needs to be kept for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "operators.h"

namespace fusedsc::aten {

inline bool requires_grad(const Tensor& tensor) { return tensor.requires_grad(); }
inline bool requires_grad(const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); }
inline bool requires_grad(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return requires_grad(tensor); });
}
inline bool requires_grad(const TensorOptionals& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const OptionalTensor& tensor) { return requires_grad(tensor); });
}

template <class... Tensors>
bool will_differentiate(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (requires_grad(tensors) || ...);
}

}  // namespace fusedsc::aten
