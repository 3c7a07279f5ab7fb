/// The gradients of a sliding-channel convolution in the words of the pointwise operator.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc {

/// The same with the given weight and its gradient. Without `windows`, these are expanded ones
/// (sliding_channel_weight.h).
inline PointwiseBackwardArguments pointwise_of(const SlidingChannelBackwardArguments& a, const ConstTensorView& weight,
                                               const TensorView& grad_weight, const SlidingChannels& windows = {}) {
  PointwiseBackwardArguments pointwise;
  pointwise.x = a.x;
  pointwise.weight = weight;
  pointwise.prologue = a.prologue;
  pointwise.grad_y = a.grad_y;
  pointwise.gradient_prologue = a.gradient_prologue;
  pointwise.sums = a.sums;
  pointwise.grad_add = a.grad_add;
  pointwise.grad_x = a.grad_x;
  pointwise.grad_weight = grad_weight;
  pointwise.grad_bias = a.grad_bias;
  pointwise.allow_tf32 = a.allow_tf32;
  pointwise.windows = windows;
  return pointwise;
}

}  // namespace fusedsc
