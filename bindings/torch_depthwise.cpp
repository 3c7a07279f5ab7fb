/// Depthwise convolution: kernels for PyTorch's dispatcher, and the fake ones that torch.compile asks for sizes.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "explain.h"
#include "fusedsc/backward/depthwise.h"
#include "operators.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

Tensor depthwise_conv2d_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                             IntArrayRef padding, IntArrayRef dilation) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  const Window window = window_of(weight, stride, padding, dilation);
  const SymSizes sizes = depthwise_output_sizes(x.sym_sizes(), weight.sym_sizes(), window);
  check_bias("bias", bias, x, sizes[1]);
  return empty_activation(sizes, x);
}

Tensors3 depthwise_conv2d_backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight, IntArrayRef stride,
                                        IntArrayRef padding, IntArrayRef dilation, std::array<bool, 3> output_mask) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  const Window window = window_of(weight, stride, padding, dilation);
  check_gradient(grad_y, depthwise_output_sizes(x.sym_sizes(), weight.sym_sizes(), window), x);
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(), empty_gradient(weight, output_mask[1]),
          output_mask[2] ? at::empty_symint({weight.sym_size(0)}, weight.options()) : Tensor()};
}

DepthwiseArguments forward_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Window& window,
                                     const Tensor& y) {
  DepthwiseArguments arguments;
  arguments.x = view(x);
  arguments.weight = view(weight);
  arguments.bias = channels(bias);
  arguments.window = window;
  arguments.y = mutable_view(y);
  return arguments;
}

DepthwiseBackwardArguments backward_arguments(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                              const Window& window, const Tensors3& gradients) {
  DepthwiseBackwardArguments arguments;
  arguments.x = view(x);
  arguments.weight = view(weight);
  arguments.window = window;
  arguments.grad_y = view(grad_y);
  const auto& [grad_x, grad_weight, grad_bias] = gradients;
  arguments.grad_x = mutable_view(grad_x);
  arguments.grad_weight = mutable_view(grad_weight);
  arguments.grad_bias = mutable_channels(grad_bias);
  return arguments;
}

Tensor depthwise_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                               IntArrayRef padding, IntArrayRef dilation) {
  const Tensor y = depthwise_conv2d_meta(x, weight, bias, stride, padding, dilation);
  if (y.numel() == 0) return y;
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), bias_ = vector_of(bias, x.scalar_type());
  const Window window = window_of(weight, stride, padding, dilation);
  run(plan_depthwise_conv2d, forward_arguments(x_, weight_, bias_, window, y), x);
  return y;
}

Tensors3 depthwise_conv2d_backward_kernel(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                          IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                          std::array<bool, 3> output_mask) {
  const Tensors3 gradients = depthwise_conv2d_backward_meta(grad_y, x, weight, stride, padding, dilation, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), grad_y_ = addressable(grad_y);
  const Window window = window_of(weight, stride, padding, dilation);
  run(plan_depthwise_conv2d_backward, backward_arguments(grad_y_, x_, weight_, window, gradients), x);
  return gradients;
}

Explanation explain_depthwise_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                            IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  const Tensor y = depthwise_conv2d_meta(x, weight, bias, stride, padding, dilation);
  const Tensors3 gradients =
      depthwise_conv2d_backward_meta(y, x, weight, stride, padding, dilation, {true, true, bias.has_value()});
  const Window window = window_of(weight, stride, padding, dilation);
  const auto forward = forward_arguments(x, weight, bias.value_or(Tensor()), window, y);
  const c10::DeviceGuard guard(x.device());
  const int threads = execution_on(x.device()).threads;
  return explanation(explain_depthwise_conv2d(forward, threads),
                     explain_depthwise_conv2d_backward(backward_arguments(y, x, weight, window, gradients), threads));
}

void register_kernels(torch::Library& m) {
  m.impl("depthwise_conv2d", translated<depthwise_conv2d_kernel>);
  m.impl("depthwise_conv2d_backward", translated<depthwise_conv2d_backward_kernel>);
  m.impl("_explain_depthwise_conv2d", translated<explain_depthwise_conv2d_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("depthwise_conv2d", translated<depthwise_conv2d_meta>);
  m.impl("depthwise_conv2d_backward", translated<depthwise_conv2d_backward_meta>);
}

}  // namespace fusedsc::aten
