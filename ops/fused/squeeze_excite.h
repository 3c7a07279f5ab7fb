/// Squeeze-and-excitation between a BatchNorm and a convolution: the passes over whole tensors. With
///   a = activation(scale[c]*x + shift[c]),
/// which is never stored, `squeeze` makes the averages of a over the positions, and `excite` a*gate[n,c]; what makes
/// the gate of the averages is the caller's. Backward, `excite_backward` makes the gate's gradient, and
/// `squeeze_backward`, once the caller has taken that back to the averages, the gradient at BatchNorm's output.
///
/// Averages, gates and their gradients are [N, C, 1, 1], of x's dtype, any strides. Maps have one position at least.
#pragma once

#include <cstddef>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/plan.h"

namespace fusedsc {

/// mean[n,c] = average over positions of activation(scale[c]*x + shift[c]).
struct SqueezeArguments {
  ConstTensorView x;
  ConstChannelVector scale, shift;
  Activation activation = Activation::identity;
  TensorView mean;
};
void squeeze(const SqueezeArguments& arguments, const Execution& execution);
std::size_t squeeze_workspace_bytes(const SqueezeArguments& arguments, int threads);
Plan<SqueezeArguments> plan_squeeze(const SqueezeArguments& arguments, int threads);

/// out = activation(scale[c]*x + shift[c]) * gate[n,c].
struct ExciteArguments {
  ConstTensorView x;
  ConstChannelVector scale, shift;
  Activation activation = Activation::identity;
  ConstTensorView gate;
  TensorView out;
};
void excite(const ExciteArguments& arguments, const Execution& execution);
std::size_t excite_workspace_bytes(const ExciteArguments& arguments, int threads);
Plan<ExciteArguments> plan_excite(const ExciteArguments& arguments, int threads);

/// grad_gate[n,c] = sum over positions of grad_out*activation(scale[c]*x + shift[c]).
struct ExciteBackwardArguments {
  ConstTensorView x, grad_out;
  ConstChannelVector scale, shift;
  Activation activation = Activation::identity;
  TensorView grad_gate;
};
void excite_backward(const ExciteBackwardArguments& arguments, const Execution& execution);
std::size_t excite_backward_workspace_bytes(const ExciteBackwardArguments& arguments, int threads);
Plan<ExciteBackwardArguments> plan_excite_backward(const ExciteBackwardArguments& arguments, int threads);

/// Of both: grad = (grad_out*gate[n,c] + grad_mean[n,c]/positions) * activation'(scale[c]*x + shift[c]), and its sums.
struct SqueezeBackwardArguments {
  ConstTensorView x, grad_out, gate, grad_mean;
  ConstChannelVector scale, shift;
  Activation activation = Activation::identity;
  TensorView grad;  ///< may be the same memory as grad_out
  GradientSums sums;
};
void squeeze_backward(const SqueezeBackwardArguments& arguments, const Execution& execution);
std::size_t squeeze_backward_workspace_bytes(const SqueezeBackwardArguments& arguments, int threads);
Plan<SqueezeBackwardArguments> plan_squeeze_backward(const SqueezeBackwardArguments& arguments, int threads);

}  // namespace fusedsc
