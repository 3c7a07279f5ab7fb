/// The block seen as its two convolutions, and the per-channel arithmetic of its BatchNorm between them: what every
/// implementation of dsc_block needs.
#pragma once

#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/fused/dsc_block.h"

namespace fusedsc {

/// DW: x -> d, with neither prologue nor statistics.
DepthwiseArguments depthwise_of(const DscBlockArguments& block);
/// Forward as backward knows it, without memory for y and d: says how d was computed. Its statistics are backward's,
/// which nobody is to write.
DscBlockArguments forward_of(const DscBlockBackwardArguments& block);
DepthwiseArguments depthwise_of(const DscBlockBackwardArguments& block);

/// d's sizes in an order of memory like x's.
ConstTensorView middle_view(const ConstTensorView& x, const ConstTensorView& dw_weight, const Window& window);

/// Elements of d per channel; of an empty batch one, by which its sums, all zero, can be divided.
std::int64_t middle_count(const ConstTensorView& y);

/// Of forward and of backward.
template <class Block>
Normalisation normalisation_of(const Block& block) {
  return {block.bn_weight, block.bn_bias, block.mean, block.invstd};
}

/// What the depthwise pass of a training block leaves: block.mean, block.invstd, where the sums of squares are at
/// first, block.variance, and the affine map.
Statistics statistics_of(const DscBlockArguments& block, ChannelVector scale, ChannelVector shift);

/// Whether anything upstream of BatchNorm wants a gradient.
bool wants_depthwise_gradients(const DscBlockBackwardArguments& block);

/// From the sums of the pointwise pass to the coefficients of the depthwise pass's gradient prologue, and to the
/// gradients of BatchNorm's parameters.
struct MiddleGradient {
  ChannelVector sum_grad, sum_grad_times_centered;
  ChannelVector grad_scale, output_scale, offset;
};
GradientSums sums_of(const DscBlockBackwardArguments& block, const MiddleGradient& middle);

/// The depthwise half of backward: everything but grad_y's memory and its prologue.
DepthwiseBackwardArguments depthwise_backward_of(const DscBlockBackwardArguments& block);

/// The pointwise half of backward, without groups: everything but x, grad_x and the prologue.
PointwiseBackwardArguments pointwise_backward_of(const DscBlockBackwardArguments& block);

/// Why an implementation whose second convolution is a dense pointwise one cannot run the block; empty if it can.
template <class Block>
std::string needs_dense_pointwise(const Block& block) {
  if (block.overlap) return "the second convolution is a sliding-channel one";
  return block.groups > 1 ? "the second convolution has groups" : "";
}

}  // namespace fusedsc
