/// Depthwise convolution, input, weight and bias gradients. Input-centric (Wang et al., DSXplore,
/// section IV-B: each element of grad_x pulls from the output gradients whose window covers it), so nothing is added
/// atomically.
#pragma once

#include "fusedsc/forward/depthwise.h"

namespace fusedsc {

/// With g = gradient_prologue(grad_y) and a = prologue(x):
///   grad_weight = sum g*a over the window, grad_bias = sum g,
///   grad_x      = depthwise_transposed(g, weight) [* activation'(scale*x + shift)] [+ grad_add].
/// With a prologue, grad_x is the gradient at the output of the affine map (its scale is NOT applied): what
/// BatchNorm's backward starts from; `sums` collects the two sums it needs.
struct DepthwiseBackwardArguments {
  ConstTensorView x;       ///< [N, C, H, W] raw, as in forward
  ConstTensorView weight;  ///< [C*m, 1, Kh, Kw]
  Window window;
  Prologue prologue;       ///< as in forward
  ConstTensorView grad_y;  ///< [N, C*m, OH, OW], any strides
  GradientPrologue gradient_prologue;
  GradientSums sums;         ///< needs grad_x and a prologue
  ConstTensorView grad_add;  ///< added to grad_x (a residual's gradient); x's sizes, not together with `sums`; or empty
  TensorView grad_x;         ///< [N, C, H, W]; null data: not wanted
  TensorView grad_weight;    ///< weight's sizes; null data: not wanted
  ChannelVector grad_bias;   ///< [C*m], dtype of x; null data: not wanted
};

/// Runs the first implementation that can. Throws InvalidArgument or Unsupported.
void depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments, const Execution& execution);
std::size_t depthwise_conv2d_backward_workspace_bytes(const DepthwiseBackwardArguments& arguments, int threads);
Plan<DepthwiseBackwardArguments> plan_depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments,
                                                                int threads);
std::vector<Candidate> explain_depthwise_conv2d_backward(const DepthwiseBackwardArguments& arguments, int threads = 1);

}  // namespace fusedsc
