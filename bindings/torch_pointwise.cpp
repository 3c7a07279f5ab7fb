/// Pointwise convolution: kernels for PyTorch's dispatcher, and the fake ones that torch.compile asks for sizes.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "explain.h"
#include "fusedsc/backward/pointwise.h"
#include "operators.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

Tensor pointwise_conv2d_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, std::int64_t groups) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  const SymSizes sizes = pointwise_output_sizes(x.sym_sizes(), weight.sym_sizes(), groups);
  check_bias("bias", bias, x, sizes[1]);
  return empty_activation(sizes, x);
}

Tensors3 pointwise_conv2d_backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                        std::int64_t groups, std::array<bool, 3> output_mask) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  check_gradient(grad_y, pointwise_output_sizes(x.sym_sizes(), weight.sym_sizes(), groups), x);
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(), empty_gradient(weight, output_mask[1]),
          output_mask[2] ? at::empty_symint({weight.sym_size(0)}, weight.options()) : Tensor()};
}

PointwiseArguments forward_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t groups,
                                     const Tensor& y) {
  PointwiseArguments arguments;
  arguments.x = view(x);
  arguments.weight = view(weight);
  arguments.bias = channels(bias);
  arguments.groups = groups;
  arguments.y = mutable_view(y);
  arguments.allow_tf32 = convolutions_allow_tf32();
  return arguments;
}

PointwiseBackwardArguments backward_arguments(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                              std::int64_t groups, const Tensors3& gradients) {
  PointwiseBackwardArguments arguments;
  arguments.x = view(x);
  arguments.weight = view(weight);
  arguments.groups = groups;
  arguments.grad_y = view(grad_y);
  const auto& [grad_x, grad_weight, grad_bias] = gradients;
  arguments.grad_x = mutable_view(grad_x);
  arguments.grad_weight = mutable_view(grad_weight);
  arguments.grad_bias = mutable_channels(grad_bias);
  arguments.allow_tf32 = convolutions_allow_tf32();
  return arguments;
}

Tensor pointwise_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, std::int64_t groups) {
  const Tensor y = pointwise_conv2d_meta(x, weight, bias, groups);
  if (y.numel() == 0) return y;
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), bias_ = vector_of(bias, x.scalar_type());
  run(plan_pointwise_conv2d, forward_arguments(x_, weight_, bias_, groups, y), x);
  return y;
}

Tensors3 pointwise_conv2d_backward_kernel(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                          std::int64_t groups, std::array<bool, 3> output_mask) {
  const Tensors3 gradients = pointwise_conv2d_backward_meta(grad_y, x, weight, groups, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), grad_y_ = addressable(grad_y);
  run(plan_pointwise_conv2d_backward, backward_arguments(grad_y_, x_, weight_, groups, gradients), x);
  return gradients;
}

Explanation explain_pointwise_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                            std::int64_t groups) {
  const Tensor y = pointwise_conv2d_meta(x, weight, bias, groups);
  const Tensors3 gradients = pointwise_conv2d_backward_meta(y, x, weight, groups, {true, true, bias.has_value()});
  const auto forward = forward_arguments(x, weight, bias.value_or(Tensor()), groups, y);
  const c10::DeviceGuard guard(x.device());
  const int threads = execution_on(x.device()).threads;
  return explanation(explain_pointwise_conv2d(forward, threads),
                     explain_pointwise_conv2d_backward(backward_arguments(y, x, weight, groups, gradients), threads));
}

void register_kernels(torch::Library& m) {
  m.impl("pointwise_conv2d", translated<pointwise_conv2d_kernel>);
  m.impl("pointwise_conv2d_backward", translated<pointwise_conv2d_backward_kernel>);
  m.impl("_explain_pointwise_conv2d", translated<explain_pointwise_conv2d_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("pointwise_conv2d", translated<pointwise_conv2d_meta>);
  m.impl("pointwise_conv2d_backward", translated<pointwise_conv2d_backward_meta>);
}

}  // namespace fusedsc::aten
