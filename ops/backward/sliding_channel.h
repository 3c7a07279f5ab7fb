/// Sliding-channel convolution, input, weight and bias gradients.
#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

/// With g = gradient_prologue(grad_y) and a = prologue(x):
///   grad_weight[m][k] = sum g[m]*a[(first(m) + k) mod C] over N, H, W; grad_bias = sum g,
///   grad_x[c]         = sum of weight[m][k]*g[m] over the filters m with (first(m) + k) mod C = c
///                       [* activation'(scale*x + shift)] [+ grad_add].
/// Input-centric, as in DSXplore, section IV-B: each channel pulls from the filters whose windows it is in.
/// With a prologue, grad_x is the gradient at the output of the affine map (its scale is NOT applied): what
/// BatchNorm's backward starts from; `sums` collects the two sums it needs.
struct SlidingChannelBackwardArguments {
  ConstTensorView x;        ///< [N, C, H, W] raw, as in forward
  ConstTensorView weight;   ///< [M, C/groups rounded down, 1, 1]
  std::int64_t groups = 2;  ///< as in forward, likewise overlap
  double overlap = 0.5;
  bool allow_tf32 = false;
  Prologue prologue;       ///< as in forward
  ConstTensorView grad_y;  ///< [N, M, H, W], any strides
  GradientPrologue gradient_prologue;
  GradientSums sums;         ///< needs grad_x and a prologue
  ConstTensorView grad_add;  ///< added to grad_x (a residual's gradient); x's sizes, not together with `sums`; or empty
  TensorView grad_x;         ///< [N, C, H, W]; null data: not wanted
  TensorView grad_weight;    ///< weight's sizes; null data: not wanted
  ChannelVector grad_bias;   ///< [M], dtype of x; null data: not wanted
};

/// Runs the first implementation that can. Throws InvalidArgument or Unsupported.
void sliding_channel_conv2d_backward(const SlidingChannelBackwardArguments& arguments, const Execution& execution);
std::size_t sliding_channel_conv2d_backward_workspace_bytes(const SlidingChannelBackwardArguments& arguments,
                                                            int threads);
Plan<SlidingChannelBackwardArguments> plan_sliding_channel_conv2d_backward(
    const SlidingChannelBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_sliding_channel_conv2d_backward(const SlidingChannelBackwardArguments& arguments,
                                                               int threads = 1);

}  // namespace fusedsc
