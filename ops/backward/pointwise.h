/// Pointwise convolution, input, weight and bias gradients.
#pragma once

#include "fusedsc/forward/pointwise.h"

namespace fusedsc {

/// With g = gradient_prologue(grad_y) and a = prologue(x):
///   grad_weight[m][c] = sum g[m]*a[c] over N, H, W; grad_bias = sum g,
///   grad_x            = weight^T g [* activation'(scale*x + shift)] [+ grad_add].
/// With a prologue, grad_x is the gradient at the output of the affine map (its scale is NOT applied): what
/// BatchNorm's backward starts from; `sums` collects the two sums it needs.
struct PointwiseBackwardArguments {
  ConstTensorView x;       ///< [N, C, H, W] raw, as in forward
  ConstTensorView weight;  ///< [M, C/groups, 1, 1]
  std::int64_t groups = 1;
  Prologue prologue;       ///< as in forward
  ConstTensorView grad_y;  ///< [N, M, H, W], any strides
  GradientPrologue gradient_prologue;
  GradientSums sums;         ///< needs grad_x and a prologue
  ConstTensorView grad_add;  ///< added to grad_x (a residual's gradient); x's sizes, not together with `sums`; or empty
  TensorView grad_x;         ///< [N, C, H, W]; null data: not wanted
  TensorView grad_weight;    ///< weight's sizes; null data: not wanted
  ChannelVector grad_bias;   ///< [M], dtype of x; null data: not wanted
  bool allow_tf32 = false;   ///< as in forward
  SlidingChannels windows;   ///< as in forward
};

/// Runs the first implementation that can. Throws InvalidArgument or Unsupported.
void pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments, const Execution& execution);
std::size_t pointwise_conv2d_backward_workspace_bytes(const PointwiseBackwardArguments& arguments, int threads);
Plan<PointwiseBackwardArguments> plan_pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments,
                                                                int threads);
std::vector<Candidate> explain_pointwise_conv2d_backward(const PointwiseBackwardArguments& arguments, int threads = 1);

}  // namespace fusedsc
