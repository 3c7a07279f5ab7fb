#include "fusedsc/fused/dsc_block/dsc_block_parts.h"

#include <algorithm>

namespace fusedsc {

DepthwiseArguments depthwise_of(const DscBlockArguments& block) {
  DepthwiseArguments depthwise;
  depthwise.x = block.x;
  depthwise.weight = block.dw_weight;
  depthwise.bias = block.dw_bias;
  depthwise.window = block.window;
  const ConstTensorView view = middle_view(block.x, block.dw_weight, block.window);
  depthwise.y = block.d ? block.d : TensorView(nullptr, view.dtype, view.sizes, view.strides, view.device);
  return depthwise;
}

DscBlockArguments forward_of(const DscBlockBackwardArguments& block) {
  const auto unwritten = [](const ConstChannelVector& vector) {
    return ChannelVector(const_cast<void*>(vector.data), vector.dtype, vector.size, vector.device);
  };
  DscBlockArguments forward;
  forward.x = block.x;
  forward.dw_weight = block.dw_weight;
  forward.dw_bias = block.dw_bias;
  forward.pw_weight = block.pw_weight;
  forward.groups = block.groups;
  forward.overlap = block.overlap;
  forward.window = block.window;
  forward.bn_weight = block.bn_weight;
  forward.bn_bias = block.bn_bias;
  forward.eps = block.eps;
  forward.activation = block.activation;
  forward.training = block.training;
  forward.mean = unwritten(block.mean);
  forward.invstd = unwritten(block.invstd);
  forward.variance = unwritten(block.variance);
  forward.scale = unwritten(block.scale);
  forward.shift = unwritten(block.shift);
  forward.allow_tf32 = block.allow_tf32;
  return forward;
}

DepthwiseArguments depthwise_of(const DscBlockBackwardArguments& block) { return depthwise_of(forward_of(block)); }

ConstTensorView middle_view(const ConstTensorView& x, const ConstTensorView& dw_weight, const Window& window) {
  const Sizes sizes = depthwise_output_sizes(x.sizes, dw_weight.sizes, window);
  const Layout layout = layout_of(x.sizes, x.strides);
  return {nullptr, x.dtype, sizes, dense_strides(sizes, layout), x.device};
}

std::int64_t middle_count(const ConstTensorView& y) {
  return std::max<std::int64_t>(y.sizes[0] * y.sizes[2] * y.sizes[3], 1);
}

Statistics statistics_of(const DscBlockArguments& block, ChannelVector scale, ChannelVector shift) {
  return {block.mean,
          block.invstd,
          {block.bn_weight, block.bn_bias, block.eps, block.invstd, block.variance, scale, shift}};
}

bool wants_depthwise_gradients(const DscBlockBackwardArguments& block) {
  return block.grad_x || block.grad_dw_weight || block.grad_dw_bias;
}

GradientSums sums_of(const DscBlockBackwardArguments& block, const MiddleGradient& middle) {
  return {block.mean,
          middle.sum_grad,
          middle.sum_grad_times_centered,
          {block.bn_weight, block.invstd, block.training, middle.grad_scale, middle.output_scale, middle.offset,
           block.grad_bn_weight, block.grad_bn_bias}};
}

DepthwiseBackwardArguments depthwise_backward_of(const DscBlockBackwardArguments& block) {
  DepthwiseBackwardArguments depthwise;
  depthwise.x = block.x;
  depthwise.weight = block.dw_weight;
  depthwise.window = block.window;
  depthwise.grad_y = middle_view(block.x, block.dw_weight, block.window);
  depthwise.grad_x = block.grad_x;
  depthwise.grad_weight = block.grad_dw_weight;
  depthwise.grad_bias = block.grad_dw_bias;
  return depthwise;
}

PointwiseBackwardArguments pointwise_backward_of(const DscBlockBackwardArguments& block) {
  PointwiseBackwardArguments pointwise;
  pointwise.weight = block.pw_weight;
  pointwise.grad_y = block.grad_y;
  pointwise.grad_weight = block.grad_pw_weight;
  pointwise.grad_bias = block.grad_pw_bias;
  pointwise.allow_tf32 = block.allow_tf32;
  return pointwise;
}

}  // namespace fusedsc
