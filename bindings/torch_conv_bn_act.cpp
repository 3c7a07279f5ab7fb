/// Convolution -> BatchNorm -> activation: its functional core, and the public operator around it.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "arguments.h"
#include "explain.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/conv_bn_act.h"
#include "operators.h"
#include "running_statistics.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

SymSizes check_geometry(const Tensor& x, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
                        IntArrayRef dilation) {
  check_weight("weight", weight, x);
  const Window window = window_of(weight, stride, padding, dilation);
  check_activation("x", x);
  return conv_output_sizes(x.sym_sizes(), weight.sym_sizes(), window);
}

Tensors2 conv_bn_act_forward_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                                  const OptionalTensor& bn_bias, const OptionalTensor& statistics, double eps,
                                  std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                  IntArrayRef dilation) {
  const SymSizes y_sizes = check_geometry(x, weight, stride, padding, dilation);
  check_batch_norm_vector("bn_weight", bn_weight, x, y_sizes[1]);
  check_batch_norm_vector("bn_bias", bn_bias, x, y_sizes[1]);
  check(eps >= 0, "eps: it is ", eps, "; it must not be negative");
  activation_from_name(std::string(activation));
  if (!statistics) check_batch_size(y_sizes);
  check_statistics(statistics, x, y_sizes[1]);

  const auto statistics_options = x.options().dtype(accumulation_type(x.scalar_type()));
  return {empty_activation(y_sizes, x),
          statistics ? at::empty({0}, statistics_options) : at::empty_symint({3, y_sizes[1]}, statistics_options)};
}

Tensors4 conv_bn_act_backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                   const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                                   const Tensor& /*statistics*/, bool /*training*/, std::string_view /*activation*/,
                                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                   std::array<bool, 4> output_mask) {
  check_gradient(grad_y, check_geometry(x, weight, stride, padding, dilation), x);
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(), empty_gradient(weight, output_mask[1]),
          empty_gradient(bn_weight, output_mask[2]), empty_gradient(bn_bias, output_mask[3])};
}

/// A weight whose filters lie in memory as runs, one way or the other.
Tensor dense(const Tensor& weight) { return weight.contiguous(weight.suggest_memory_format()); }

/// The operands as kernels read them.
struct Operands {
  Tensor x, weight, bn_weight, bn_bias, statistics;

  Operands(const Tensor& x_, const Tensor& weight_, const OptionalTensor& bn_weight_, const OptionalTensor& bn_bias_,
           const Tensor& statistics_)
      : x(addressable(x_)),
        weight(dense(weight_)),
        bn_weight(vector_of(bn_weight_, accumulation_type(x.scalar_type()))),
        bn_bias(vector_of(bn_bias_, accumulation_type(x.scalar_type()))),
        statistics(vector_of(statistics_, accumulation_type(x.scalar_type()))) {}

  /// What forward's and backward's arguments have in common.
  template <class Arguments>
  Arguments arguments(const Window& window, std::string_view activation, bool training) const {
    Arguments arguments;
    arguments.x = view(x);
    arguments.weight = view(weight);
    arguments.window = window;
    arguments.bn_weight = channels(bn_weight);
    arguments.bn_bias = channels(bn_bias);
    arguments.activation = activation_from_name(std::string(activation));
    arguments.training = training;
    arguments.allow_tf32 = convolutions_allow_tf32();
    arguments.mean = mutable_row(statistics, 0);
    arguments.invstd = mutable_row(statistics, 1);
    return arguments;
  }
};

ConvBnActArguments forward_arguments(const Operands& operands, const Window& window, std::string_view activation,
                                     double eps, bool training, const Tensor& y) {
  auto arguments = operands.arguments<ConvBnActArguments>(window, activation, training);
  arguments.eps = eps;
  if (training) arguments.variance = mutable_row(operands.statistics, 2);
  if (has_all_rows(operands.statistics)) {
    arguments.scale = mutable_row(operands.statistics, 3);
    arguments.shift = mutable_row(operands.statistics, 4);
  }
  arguments.y = mutable_view(y);
  return arguments;
}

Tensors2 conv_bn_act_forward_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                                    const OptionalTensor& bn_bias, const OptionalTensor& statistics, double eps,
                                    std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                    IntArrayRef dilation) {
  Tensors2 outputs =
      conv_bn_act_forward_meta(x, weight, bn_weight, bn_bias, statistics, eps, activation, stride, padding, dilation);
  const auto& [y, batch_statistics] = outputs;
  if (y.numel() == 0) return batch_statistics.zero_(), outputs;
  const bool training = !statistics;
  const bool folded = are_folded(statistics);
  const Operands operands(x, weight, folded ? OptionalTensor() : bn_weight, folded ? OptionalTensor() : bn_bias,
                          statistics.value_or(batch_statistics));
  const Window window = window_of(weight, stride, padding, dilation);
  run(plan_conv_bn_act, forward_arguments(operands, window, activation, eps, training, y), x);
  return outputs;
}

ConvBnActBackwardArguments backward_arguments(const Operands& operands, const Window& window,
                                              std::string_view activation, bool training, const Tensor& grad_y,
                                              const Tensors4& gradients) {
  auto arguments = operands.arguments<ConvBnActBackwardArguments>(window, activation, training);
  arguments.grad_y = view(grad_y);
  arguments.grad_x = mutable_view(std::get<0>(gradients));
  arguments.grad_weight = mutable_view(std::get<1>(gradients));
  arguments.grad_bn_weight = mutable_channels(std::get<2>(gradients));
  arguments.grad_bn_bias = mutable_channels(std::get<3>(gradients));
  return arguments;
}

Tensors4 conv_bn_act_backward_kernel(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                     const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                                     const Tensor& statistics, bool training, std::string_view activation,
                                     IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                     std::array<bool, 4> output_mask) {
  Tensors4 gradients = conv_bn_act_backward_meta(grad_y, x, weight, bn_weight, bn_bias, statistics, training,
                                                 activation, stride, padding, dilation, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);
  const Operands operands(x, weight, bn_weight, bn_bias, statistics);
  Tensors4 written = gradients;
  auto& [grad_x, grad_weight, grad_bn_weight, grad_bn_bias] = written;
  if (grad_weight.defined() && !operands.weight.is_same(weight)) grad_weight = at::empty_like(operands.weight);
  grad_bn_weight = accumulator_for(grad_bn_weight, statistics.scalar_type());
  grad_bn_bias = accumulator_for(grad_bn_bias, statistics.scalar_type());

  const Window window = window_of(weight, stride, padding, dilation);
  const Tensor grad_y_ = addressable(grad_y);
  run(plan_conv_bn_act_backward, backward_arguments(operands, window, activation, training, grad_y_, written), x);
  store(grad_weight, std::get<1>(gradients));
  store(grad_bn_weight, std::get<2>(gradients));
  store(grad_bn_bias, std::get<3>(gradients));
  return gradients;
}

Explanation explain_conv_bn_act_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                                       const OptionalTensor& bn_bias, const OptionalTensor& running_mean,
                                       const OptionalTensor& /*running_var*/, bool training,
                                       std::optional<double> /*momentum*/,
                                       const OptionalTensor& /*num_batches_tracked*/, double eps,
                                       std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                       IntArrayRef dilation) {
  const auto [y, statistics] =
      conv_bn_act_forward_meta(x, weight, bn_weight, bn_bias, {}, eps, activation, stride, padding, dilation);
  const bool batch_statistics = training || !running_mean;
  const Window window = window_of(weight, stride, padding, dilation);
  const Operands operands(x, weight, bn_weight, bn_bias, statistics);
  // An image's gradient is wanted by few.
  const Tensors4 gradients(x.requires_grad() ? operands.x : Tensor(), operands.weight, operands.bn_weight,
                           operands.bn_bias);
  const c10::DeviceGuard guard(x.device());
  const int threads = execution_on(x.device()).threads;
  return explanation(
      explain_conv_bn_act(forward_arguments(operands, window, activation, eps, batch_statistics, y), threads),
      explain_conv_bn_act_backward(backward_arguments(operands, window, activation, batch_statistics, y, gradients),
                                   threads));
}

void register_kernels(torch::Library& m) {
  m.impl("_conv_bn_act_forward", translated<conv_bn_act_forward_kernel>);
  m.impl("_conv_bn_act_backward", translated<conv_bn_act_backward_kernel>);
  m.impl("_explain_conv_bn_act", translated<explain_conv_bn_act_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("_conv_bn_act_forward", translated<conv_bn_act_forward_meta>);
  m.impl("_conv_bn_act_backward", translated<conv_bn_act_backward_meta>);
}

}  // namespace fusedsc::aten
