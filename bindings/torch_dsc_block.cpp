/// The fused block DW -> BatchNorm -> activation -> PW: its functional core, and the public operator around it.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "arguments.h"
#include "block_layout.h"
#include "explain.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/dsc_block.h"
#include "operators.h"
#include "running_statistics.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// Whether the raw depthwise output d, from forward to backward, and the gradient at BatchNorm's output, between
/// backward's passes, live in memory. None asks for the fastest: on a CPU to store them measured faster at every shape
/// (docs/log/performance.md), so that is what it means here.
bool stores_middle(std::optional<bool> recompute) { return !recompute.value_or(false); }

struct Geometry {
  Window window;
  SymSizes d, y;
};

Geometry geometry_of(const Tensor& x, const Tensor& dw_weight, const Tensor& pw_weight, IntArrayRef stride,
                     IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::optional<double> overlap) {
  check_activation("x", x);
  check_weight("dw_weight", dw_weight, x);
  check_weight("pw_weight", pw_weight, x);
  const Window window = window_of(dw_weight, stride, padding, dilation);
  const SymSizes d = depthwise_output_sizes(x.sym_sizes(), dw_weight.sym_sizes(), window);
  return {window, d,
          overlap ? sliding_channel_output_sizes(d, pw_weight.sym_sizes(), groups, *overlap)
                  : pointwise_output_sizes(d, pw_weight.sym_sizes(), groups)};
}

Tensors3 dsc_block_forward_meta(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& dw_bias,
                                const OptionalTensor& bn_weight, const OptionalTensor& bn_bias, const Tensor& pw_weight,
                                const OptionalTensor& pw_bias, const OptionalTensor& statistics, double eps,
                                std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                IntArrayRef dilation, std::optional<bool> recompute, std::int64_t groups,
                                std::optional<double> overlap) {
  const auto [window, d_sizes, y_sizes] =
      geometry_of(x, dw_weight, pw_weight, stride, padding, dilation, groups, overlap);
  check_bias("dw_bias", dw_bias, x, d_sizes[1]);
  check_bias("pw_bias", pw_bias, x, y_sizes[1]);
  check_batch_norm_vector("bn_weight", bn_weight, x, d_sizes[1]);
  check_batch_norm_vector("bn_bias", bn_bias, x, d_sizes[1]);
  check(eps >= 0, "eps: it is ", eps, "; it must not be negative");
  activation_from_name(std::string(activation));
  if (!statistics) check_batch_size(d_sizes);
  check_statistics(statistics, x, d_sizes[1]);

  const auto statistics_options = x.options().dtype(accumulation_type(x.scalar_type()));
  return {empty_activation(y_sizes, x),
          statistics ? at::empty({0}, statistics_options) : at::empty_symint({5, d_sizes[1]}, statistics_options),
          stores_middle(recompute) ? empty_activation(d_sizes, x) : at::empty({0}, x.options())};
}

Tensors7 dsc_block_backward_meta(const Tensor& grad_y, const Tensor& x, const Tensor& dw_weight,
                                 const OptionalTensor& dw_bias, const OptionalTensor& bn_weight,
                                 const OptionalTensor& bn_bias, const Tensor& pw_weight, const Tensor& /*statistics*/,
                                 const Tensor& /*d*/, bool /*training*/, std::string_view /*activation*/,
                                 IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                 std::optional<bool> /*recompute*/, std::array<bool, 7> output_mask,
                                 std::int64_t groups, std::optional<double> overlap, double /*eps*/) {
  check_gradient(grad_y, geometry_of(x, dw_weight, pw_weight, stride, padding, dilation, groups, overlap).y, x);
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(),
          empty_gradient(dw_weight, output_mask[1]),
          empty_gradient(dw_bias, output_mask[2]),
          empty_gradient(bn_weight, output_mask[3]),
          empty_gradient(bn_bias, output_mask[4]),
          empty_gradient(pw_weight, output_mask[5]),
          output_mask[6] ? at::empty_symint({pw_weight.sym_size(0)}, pw_weight.options()) : Tensor()};
}

/// The operands as kernels read them.
struct Operands {
  Tensor x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics;
  std::int64_t groups;
  std::optional<double> overlap;

  Operands(const Tensor& x_, const Tensor& dw_weight_, const OptionalTensor& dw_bias_, const OptionalTensor& bn_weight_,
           const OptionalTensor& bn_bias_, const Tensor& pw_weight_, const OptionalTensor& pw_bias_,
           const Tensor& statistics_, std::int64_t groups_, std::optional<double> overlap_)
      : x(addressable(x_)),
        dw_weight(dw_weight_.contiguous()),
        dw_bias(vector_of(dw_bias_, x.scalar_type())),
        bn_weight(vector_of(bn_weight_, accumulation_type(x.scalar_type()))),
        bn_bias(vector_of(bn_bias_, accumulation_type(x.scalar_type()))),
        pw_weight(pw_weight_.contiguous()),
        pw_bias(vector_of(pw_bias_, x.scalar_type())),
        statistics(vector_of(statistics_, accumulation_type(x.scalar_type()))),
        groups(groups_),
        overlap(overlap_) {}

  /// What forward's and backward's arguments have in common.
  template <class Arguments>
  Arguments arguments(const Window& window, std::string_view activation, double eps, bool training) const {
    Arguments arguments;
    arguments.x = view(x);
    arguments.dw_weight = view(dw_weight);
    arguments.dw_bias = channels(dw_bias);
    arguments.pw_weight = view(pw_weight);
    arguments.groups = groups;
    arguments.overlap = overlap;
    arguments.window = window;
    arguments.bn_weight = channels(bn_weight);
    arguments.bn_bias = channels(bn_bias);
    arguments.eps = eps;
    arguments.activation = activation_from_name(std::string(activation));
    arguments.training = training;
    arguments.allow_tf32 = convolutions_allow_tf32();
    arguments.mean = mutable_row(statistics, 0);
    arguments.invstd = mutable_row(statistics, 1);
    if (training && has_all_rows(statistics)) arguments.variance = mutable_row(statistics, 2);
    if (has_all_rows(statistics)) {
      arguments.scale = mutable_row(statistics, 3);
      arguments.shift = mutable_row(statistics, 4);
    }
    return arguments;
  }
};

DscBlockArguments forward_arguments(const Operands& operands, const Window& window, std::string_view activation,
                                    double eps, bool training, const Tensor& y, const Tensor& d) {
  auto arguments = operands.arguments<DscBlockArguments>(window, activation, eps, training);
  arguments.pw_bias = channels(operands.pw_bias);
  arguments.d = mutable_view(d);
  arguments.y = mutable_view(y);
  return arguments;
}

Tensors3 dsc_block_forward_kernel(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& dw_bias,
                                  const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                                  const Tensor& pw_weight, const OptionalTensor& pw_bias,
                                  const OptionalTensor& statistics, double eps, std::string_view activation,
                                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                  std::optional<bool> recompute, std::int64_t groups, std::optional<double> overlap) {
  const Tensors3 outputs =
      dsc_block_forward_meta(x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics, eps, activation,
                             stride, padding, dilation, recompute, groups, overlap);
  const auto& [y, batch_statistics, d] = outputs;
  if (y.numel() == 0) return batch_statistics.zero_(), outputs;
  const bool training = !statistics;
  const bool folded = are_folded(statistics);
  const Operands operands(x, dw_weight, dw_bias, folded ? OptionalTensor() : bn_weight,
                          folded ? OptionalTensor() : bn_bias, pw_weight, pw_bias,
                          statistics.value_or(batch_statistics), groups, overlap);
  const Window window = window_of(dw_weight, stride, padding, dilation);
  run(plan_dsc_block, forward_arguments(operands, window, activation, eps, training, y, d), x);
  return outputs;
}

DscBlockBackwardArguments backward_arguments(const Operands& operands, const Window& window,
                                             std::string_view activation, double eps, bool training, const Tensor& d,
                                             const Tensor& grad_y, const Tensor& grad_bn, const Tensors7& gradients) {
  auto arguments = operands.arguments<DscBlockBackwardArguments>(window, activation, eps, training);
  arguments.d = view(d);
  arguments.grad_y = view(grad_y);
  arguments.grad_bn = mutable_view(grad_bn);
  arguments.grad_x = mutable_view(std::get<0>(gradients));
  arguments.grad_dw_weight = mutable_view(std::get<1>(gradients));
  arguments.grad_dw_bias = mutable_channels(std::get<2>(gradients));
  arguments.grad_bn_weight = mutable_channels(std::get<3>(gradients));
  arguments.grad_bn_bias = mutable_channels(std::get<4>(gradients));
  arguments.grad_pw_weight = mutable_view(std::get<5>(gradients));
  arguments.grad_pw_bias = mutable_channels(std::get<6>(gradients));
  return arguments;
}

Tensors7 dsc_block_backward_kernel(const Tensor& grad_y, const Tensor& x, const Tensor& dw_weight,
                                   const OptionalTensor& dw_bias, const OptionalTensor& bn_weight,
                                   const OptionalTensor& bn_bias, const Tensor& pw_weight, const Tensor& statistics,
                                   const Tensor& d, bool training, std::string_view activation, IntArrayRef stride,
                                   IntArrayRef padding, IntArrayRef dilation, std::optional<bool> recompute,
                                   std::array<bool, 7> output_mask, std::int64_t groups, std::optional<double> overlap,
                                   double eps) {
  const Tensors7 gradients =
      dsc_block_backward_meta(grad_y, x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, statistics, d, training,
                              activation, stride, padding, dilation, recompute, output_mask, groups, overlap, eps);
  if (grad_y.numel() == 0) return zeroed(gradients);
  const auto [window, d_sizes, y_sizes] =
      geometry_of(x, dw_weight, pw_weight, stride, padding, dilation, groups, overlap);
  const Tensor grad_bn = stores_middle(recompute) ? empty_activation(d_sizes, x) : Tensor();
  Tensors7 written = gradients;
  std::get<3>(written) = accumulator_for(std::get<3>(gradients), statistics.scalar_type());
  std::get<4>(written) = accumulator_for(std::get<4>(gradients), statistics.scalar_type());

  const Operands operands(x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, {}, statistics, groups, overlap);
  const Tensor grad_y_ = addressable(grad_y);
  run(plan_dsc_block_backward,
      backward_arguments(operands, window, activation, eps, training, d, grad_y_, grad_bn, written), x);
  store(std::get<3>(written), std::get<3>(gradients));
  store(std::get<4>(written), std::get<4>(gradients));
  return gradients;
}

Explanation explain_dsc_block_kernel(const Tensor& given_x, const Tensor& dw_weight, const OptionalTensor& bn_weight,
                                     const OptionalTensor& bn_bias, const OptionalTensor& running_mean,
                                     const OptionalTensor& /*running_var*/, const Tensor& pw_weight,
                                     const OptionalTensor& dw_bias, const OptionalTensor& pw_bias, bool training,
                                     std::optional<double> /*momentum*/, const OptionalTensor& /*num_batches_tracked*/,
                                     double eps, std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                     IntArrayRef dilation, std::optional<bool> recompute, std::int64_t groups,
                                     std::optional<double> overlap) {
  const BlockLayout layout(given_x, dw_weight, pw_weight,
                           {.window = window_of(dw_weight, stride, padding, dilation),
                            .is_dense = groups == 1 && !overlap,
                            .differentiates = training});
  const Tensor x = layout.empty_inside(given_x);
  const auto [y, statistics, d] =
      dsc_block_forward_meta(x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, {}, eps, activation, stride,
                             padding, dilation, recompute, groups, overlap);
  const bool batch_statistics = training || !running_mean;
  const auto [window, d_sizes, y_sizes] =
      geometry_of(x, dw_weight, pw_weight, stride, padding, dilation, groups, overlap);
  const Operands operands(x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics, groups, overlap);
  const Tensor grad_bn = stores_middle(recompute) ? empty_activation(d_sizes, x) : Tensor();
  const Tensors7 gradients(operands.x, operands.dw_weight, operands.dw_bias, operands.bn_weight, operands.bn_bias,
                           operands.pw_weight, operands.pw_bias);
  const c10::DeviceGuard guard(x.device());
  const int threads = execution_on(x.device()).threads;
  const Explanation found = explanation(
      explain_dsc_block(forward_arguments(operands, window, activation, eps, batch_statistics, y, d), threads),
      explain_dsc_block_backward(
          backward_arguments(operands, window, activation, eps, batch_statistics, d, y, grad_bn, gradients), threads));
  return layout.explained(found);
}

void register_kernels(torch::Library& m) {
  m.impl("_dsc_block_forward", translated<dsc_block_forward_kernel>);
  m.impl("_dsc_block_backward", translated<dsc_block_backward_kernel>);
  m.impl("_explain_dsc_block", translated<explain_dsc_block_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("_dsc_block_forward", translated<dsc_block_forward_meta>);
  m.impl("_dsc_block_backward", translated<dsc_block_backward_meta>);
}

}  // namespace fusedsc::aten
