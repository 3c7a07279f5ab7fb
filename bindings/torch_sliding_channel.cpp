/// Sliding-channel convolution: kernels for PyTorch's dispatcher, and the fake ones that torch.compile asks for sizes.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "arguments.h"
#include "explain.h"
#include "fusedsc/backward/sliding_channel.h"
#include "operators.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

Tensor sliding_channel_conv2d_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                   std::int64_t groups, double overlap) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  const SymSizes sizes = sliding_channel_output_sizes(x.sym_sizes(), weight.sym_sizes(), groups, overlap);
  check_bias("bias", bias, x, sizes[1]);
  return empty_activation(sizes, x);
}

Tensors3 sliding_channel_conv2d_backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                              std::int64_t groups, double overlap, std::array<bool, 3> output_mask) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  check_gradient(grad_y, sliding_channel_output_sizes(x.sym_sizes(), weight.sym_sizes(), groups, overlap), x);
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(), empty_gradient(weight, output_mask[1]),
          output_mask[2] ? at::empty_symint({weight.sym_size(0)}, weight.options()) : Tensor()};
}

SlidingChannelArguments forward_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                          std::int64_t groups, double overlap, const Tensor& y) {
  SlidingChannelArguments arguments;
  arguments.x = view(x);
  arguments.weight = view(weight);
  arguments.bias = channels(bias);
  arguments.groups = groups;
  arguments.overlap = overlap;
  arguments.allow_tf32 = convolutions_allow_tf32();
  arguments.y = mutable_view(y);
  return arguments;
}

SlidingChannelBackwardArguments backward_arguments(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                                   std::int64_t groups, double overlap, const Tensors3& gradients) {
  SlidingChannelBackwardArguments arguments;
  arguments.x = view(x);
  arguments.weight = view(weight);
  arguments.groups = groups;
  arguments.overlap = overlap;
  arguments.allow_tf32 = convolutions_allow_tf32();
  arguments.grad_y = view(grad_y);
  const auto& [grad_x, grad_weight, grad_bias] = gradients;
  arguments.grad_x = mutable_view(grad_x);
  arguments.grad_weight = mutable_view(grad_weight);
  arguments.grad_bias = mutable_channels(grad_bias);
  return arguments;
}

Tensor sliding_channel_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                     std::int64_t groups, double overlap) {
  const Tensor y = sliding_channel_conv2d_meta(x, weight, bias, groups, overlap);
  if (y.numel() == 0) return y;
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), bias_ = vector_of(bias, x.scalar_type());
  run(plan_sliding_channel_conv2d, forward_arguments(x_, weight_, bias_, groups, overlap, y), x);
  return y;
}

Tensors3 sliding_channel_conv2d_backward_kernel(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                                std::int64_t groups, double overlap, std::array<bool, 3> output_mask) {
  const Tensors3 gradients = sliding_channel_conv2d_backward_meta(grad_y, x, weight, groups, overlap, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), grad_y_ = addressable(grad_y);
  run(plan_sliding_channel_conv2d_backward, backward_arguments(grad_y_, x_, weight_, groups, overlap, gradients), x);
  return gradients;
}

Explanation explain_sliding_channel_conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                                  std::int64_t groups, double overlap) {
  const Tensor y = sliding_channel_conv2d_meta(x, weight, bias, groups, overlap);
  const Tensors3 gradients =
      sliding_channel_conv2d_backward_meta(y, x, weight, groups, overlap, {true, true, bias.has_value()});
  const auto forward = forward_arguments(x, weight, bias.value_or(Tensor()), groups, overlap, y);
  const c10::DeviceGuard guard(x.device());
  const int threads = execution_on(x.device()).threads;
  return explanation(
      explain_sliding_channel_conv2d(forward, threads),
      explain_sliding_channel_conv2d_backward(backward_arguments(y, x, weight, groups, overlap, gradients), threads));
}

void register_kernels(torch::Library& m) {
  m.impl("sliding_channel_conv2d", translated<sliding_channel_conv2d_kernel>);
  m.impl("sliding_channel_conv2d_backward", translated<sliding_channel_conv2d_backward_kernel>);
  m.impl("_explain_sliding_channel_conv2d", translated<explain_sliding_channel_conv2d_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("sliding_channel_conv2d", translated<sliding_channel_conv2d_meta>);
  m.impl("sliding_channel_conv2d_backward", translated<sliding_channel_conv2d_backward_meta>);
}

}  // namespace fusedsc::aten
