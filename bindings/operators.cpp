#include "operators.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>
#include <type_traits>

#include "dtype_names.h"

namespace fusedsc::aten {
namespace {

/// Calls the operator registered as `name`, whose schema matches the signature.
template <class Signature, class... Arguments>
auto call_as(const char* name, const Arguments&... arguments) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
  return op.call(arguments...);
}

/// The same, where the schema matches the type of `function`.
template <auto* function, class... Arguments>
auto call(const char* name, const Arguments&... arguments) {
  return call_as<std::remove_pointer_t<decltype(function)>>(name, arguments...);
}

}  // namespace

std::vector<Tensor> cast(at::TensorList tensors, at::ScalarType dtype) {
  using Signature = std::vector<Tensor>(at::TensorList, std::string_view);
  return call_as<Signature>("fusedsc::_cast", tensors, dtype_name(dtype));
}

std::vector<Tensor> cast_sliding(at::TensorList tensors, at::ScalarType dtype, std::int64_t channels,
                                 std::int64_t groups, double overlap, bool gathers) {
  using Signature = std::vector<Tensor>(at::TensorList, std::string_view, std::int64_t, std::int64_t, double, bool);
  return call_as<Signature>("fusedsc::_cast_sliding", tensors, dtype_name(dtype), channels, groups, overlap, gathers);
}

Tensor change_layout(const Tensor& x, bool channels_last) {
  return call<change_layout>("fusedsc::_change_layout", x, channels_last);
}

Tensor fold_batch_norms(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, bool is_double) {
  return call<fold_batch_norms>("fusedsc::_fold_batch_norms", batch_norms, eps, is_double);
}

Tensor depthwise_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                        IntArrayRef padding, IntArrayRef dilation) {
  return call<depthwise_conv2d>("fusedsc::depthwise_conv2d", x, weight, bias, stride, padding, dilation);
}

Tensors3 depthwise_conv2d_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, IntArrayRef stride,
                                   IntArrayRef padding, IntArrayRef dilation, std::array<bool, 3> output_mask) {
  return call<depthwise_conv2d_backward>("fusedsc::depthwise_conv2d_backward", grad_y, x, weight, stride, padding,
                                         dilation, output_mask);
}

Tensor prologue_conv2d(const Tensor& x, const OptionalTensor& scale, const OptionalTensor& shift,
                       std::string_view prologue, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation) {
  return call<prologue_conv2d>("fusedsc::_prologue_conv2d", x, scale, shift, prologue, weight, bias, stride, padding,
                               dilation, groups, activation);
}

Tensor ecr_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                  IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                  const OptionalTensor& packed, std::string_view config) {
  return call<ecr_conv2d>("fusedsc::ecr_conv2d", x, weight, bias, stride, padding, dilation, groups, activation, packed,
                          config);
}

Tensor pecr_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef pool_size, IntArrayRef pool_stride, IntArrayRef dilation,
                   std::int64_t groups, const OptionalTensor& packed, std::string_view config) {
  return call<pecr_conv2d>("fusedsc::pecr_conv2d", x, weight, bias, stride, padding, pool_size, pool_stride, dilation,
                           groups, packed, config);
}

Tensor pack_sparse_weight(const Tensor& weight, std::int64_t groups) {
  return call<pack_sparse_weight>("fusedsc::_pack_sparse_weight", weight, groups);
}

Tensor sparse_conv2d_from_compressed(const Tensor& values, const Tensor& channels, const Tensor& counts,
                                     const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                     IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                     std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride,
                                     const OptionalTensor& packed, bool channels_last, std::string_view config) {
  return call<sparse_conv2d_from_compressed>("fusedsc::_sparse_conv2d_from_compressed", values, channels, counts,
                                             weight, bias, stride, padding, dilation, groups, activation, pool_size,
                                             pool_stride, packed, channels_last, config);
}

Tensors3 sparse_conv2d_to_compressed(const Tensor& x, const OptionalTensor& channels, const OptionalTensor& counts,
                                     const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                     IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                     std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride,
                                     const OptionalTensor& packed, std::string_view config) {
  return call<sparse_conv2d_to_compressed>("fusedsc::_sparse_conv2d_to_compressed", x, channels, counts, weight, bias,
                                           stride, padding, dilation, groups, activation, pool_size, pool_stride,
                                           packed, config);
}

Tensor pointwise_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, std::int64_t groups) {
  return call<pointwise_conv2d>("fusedsc::pointwise_conv2d", x, weight, bias, groups);
}

Tensors3 pointwise_conv2d_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, std::int64_t groups,
                                   std::array<bool, 3> output_mask) {
  return call<pointwise_conv2d_backward>("fusedsc::pointwise_conv2d_backward", grad_y, x, weight, groups, output_mask);
}

Tensor sliding_channel_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, std::int64_t groups,
                              double overlap) {
  return call<sliding_channel_conv2d>("fusedsc::sliding_channel_conv2d", x, weight, bias, groups, overlap);
}

Tensors3 sliding_channel_conv2d_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                         std::int64_t groups, double overlap, std::array<bool, 3> output_mask) {
  return call<sliding_channel_conv2d_backward>("fusedsc::sliding_channel_conv2d_backward", grad_y, x, weight, groups,
                                               overlap, output_mask);
}

Tensor dsc_block(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& bn_weight,
                 const OptionalTensor& bn_bias, const OptionalTensor& running_mean, const OptionalTensor& running_var,
                 const Tensor& pw_weight, const OptionalTensor& dw_bias, const OptionalTensor& pw_bias, bool training,
                 std::optional<double> momentum, const OptionalTensor& num_batches_tracked, double eps,
                 std::string_view activation, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                 std::optional<bool> recompute, std::int64_t groups, std::optional<double> overlap) {
  return call<dsc_block>("fusedsc::dsc_block", x, dw_weight, bn_weight, bn_bias, running_mean, running_var, pw_weight,
                         dw_bias, pw_bias, training, momentum, num_batches_tracked, eps, activation, stride, padding,
                         dilation, recompute, groups, overlap);
}

Tensors3 dsc_block_forward(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& dw_bias,
                           const OptionalTensor& bn_weight, const OptionalTensor& bn_bias, const Tensor& pw_weight,
                           const OptionalTensor& pw_bias, const OptionalTensor& statistics, double eps,
                           std::string_view activation, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                           std::optional<bool> recompute, std::int64_t groups, std::optional<double> overlap) {
  return call<dsc_block_forward>("fusedsc::_dsc_block_forward", x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight,
                                 pw_bias, statistics, eps, activation, stride, padding, dilation, recompute, groups,
                                 overlap);
}

Tensors7 dsc_block_backward(const Tensor& grad_y, const Tensor& x, const Tensor& dw_weight,
                            const OptionalTensor& dw_bias, const OptionalTensor& bn_weight,
                            const OptionalTensor& bn_bias, const Tensor& pw_weight, const Tensor& statistics,
                            const Tensor& d, bool training, std::string_view activation, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, std::optional<bool> recompute,
                            std::array<bool, 7> output_mask, std::int64_t groups, std::optional<double> overlap,
                            double eps) {
  return call<dsc_block_backward>("fusedsc::_dsc_block_backward", grad_y, x, dw_weight, dw_bias, bn_weight, bn_bias,
                                  pw_weight, statistics, d, training, activation, stride, padding, dilation, recompute,
                                  output_mask, groups, overlap, eps);
}

Tensor conv_bn_act(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                   const OptionalTensor& bn_bias, const OptionalTensor& running_mean, const OptionalTensor& running_var,
                   bool training, std::optional<double> momentum, const OptionalTensor& num_batches_tracked, double eps,
                   std::string_view activation, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  return call<conv_bn_act>("fusedsc::conv_bn_act", x, weight, bn_weight, bn_bias, running_mean, running_var, training,
                           momentum, num_batches_tracked, eps, activation, stride, padding, dilation);
}

Tensors2 conv_bn_act_forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                             const OptionalTensor& bn_bias, const OptionalTensor& statistics, double eps,
                             std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                             IntArrayRef dilation) {
  return call<conv_bn_act_forward>("fusedsc::_conv_bn_act_forward", x, weight, bn_weight, bn_bias, statistics, eps,
                                   activation, stride, padding, dilation);
}

Tensors4 conv_bn_act_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                              const OptionalTensor& bn_weight, const OptionalTensor& bn_bias, const Tensor& statistics,
                              bool training, std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                              IntArrayRef dilation, std::array<bool, 4> output_mask) {
  return call<conv_bn_act_backward>("fusedsc::_conv_bn_act_backward", grad_y, x, weight, bn_weight, bn_bias, statistics,
                                    training, activation, stride, padding, dilation, output_mask);
}

Tensor inverted_residual(const Tensor& x, const OptionalTensor& expand_weight, const TensorOptionals& expand_bn,
                         const Tensor& dw_weight, const TensorOptionals& dw_bn, const Tensor& project_weight,
                         const TensorOptionals& project_bn, bool training, std::optional<at::ArrayRef<double>> momentum,
                         at::ArrayRef<double> eps, std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                         IntArrayRef dilation, bool residual, std::optional<bool> recompute,
                         const OptionalTensor& se_reduce_weight, const OptionalTensor& se_reduce_bias,
                         const OptionalTensor& se_expand_weight, const OptionalTensor& se_expand_bias,
                         std::string_view se_activation, std::string_view se_gate) {
  return call<inverted_residual>("fusedsc::inverted_residual", x, expand_weight, expand_bn, dw_weight, dw_bn,
                                 project_weight, project_bn, training, momentum, eps, activation, stride, padding,
                                 dilation, residual, recompute, se_reduce_weight, se_reduce_bias, se_expand_weight,
                                 se_expand_bias, se_activation, se_gate);
}

Tensors9 gated_residual_forward(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                const TensorOptionals& se_parameters, const OptionalTensor& statistics,
                                at::ArrayRef<double> eps, std::string_view activation, std::string_view se_activation,
                                std::string_view se_gate, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                bool residual, bool recompute, bool repeats) {
  return call<gated_residual_forward>("fusedsc::_gated_residual_forward", x, expand_weight, dw_weight, project_weight,
                                      bn_parameters, se_parameters, statistics, eps, activation, se_activation, se_gate,
                                      stride, padding, dilation, residual, recompute, repeats);
}

Tensors14 gated_residual_backward(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                  const Tensor& dw_weight, const Tensor& project_weight,
                                  const TensorOptionals& bn_parameters, const TensorOptionals& se_parameters,
                                  const Tensor& statistics, at::TensorList stored, bool training,
                                  std::string_view activation, std::string_view se_activation, std::string_view se_gate,
                                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool residual,
                                  std::array<bool, 14> output_mask) {
  return call<gated_residual_backward>("fusedsc::_gated_residual_backward", grad_y, x, expand_weight, dw_weight,
                                       project_weight, bn_parameters, se_parameters, statistics, stored, training,
                                       activation, se_activation, se_gate, stride, padding, dilation, residual,
                                       output_mask);
}

Tensor conv_chain(const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
                  const TensorOptionals& bns, bool training, at::ArrayRef<double> momenta, at::ArrayRef<double> eps,
                  const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                  IntArrayRef groups, bool residual, const OptionalTensor& branch_scale,
                  std::string_view input_activation, std::optional<bool> recompute,
                  std::optional<std::string_view> sync_group, std::int64_t sync_size) {
  return call<conv_chain>("fusedsc::conv_chain", x, weights, biases, has_bn, bns, training, momenta, eps, activations,
                          strides, paddings, dilations, groups, residual, branch_scale, input_activation, recompute,
                          sync_group, sync_size);
}

std::tuple<Tensor, Tensor, std::vector<Tensor>> conv_chain_forward(
    const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
    const TensorOptionals& bn_parameters, const OptionalTensor& statistics, at::ArrayRef<double> eps,
    const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
    bool residual, const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute,
    std::optional<std::string_view> sync_group, std::int64_t sync_size, bool repeats) {
  return call<conv_chain_forward>("fusedsc::_conv_chain_forward", x, weights, biases, has_bn, bn_parameters, statistics,
                                  eps, activations, strides, paddings, dilations, groups, residual, branch_scale,
                                  input_activation, recompute, sync_group, sync_size, repeats);
}

std::vector<Tensor> conv_chain_backward(const Tensor& grad_y, const Tensor& x, at::TensorList weights,
                                        const TensorOptionals& biases, const BoolList& has_bn,
                                        const TensorOptionals& bn_parameters, const Tensor& statistics,
                                        at::TensorList raw, bool training, const StringList& activations,
                                        IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                                        IntArrayRef groups, bool residual, const OptionalTensor& branch_scale,
                                        std::string_view input_activation, const BoolList& output_mask,
                                        std::optional<std::string_view> sync_group, std::int64_t sync_size) {
  return call<conv_chain_backward>("fusedsc::_conv_chain_backward", grad_y, x, weights, biases, has_bn, bn_parameters,
                                   statistics, raw, training, activations, strides, paddings, dilations, groups,
                                   residual, branch_scale, input_activation, output_mask, sync_group, sync_size);
}

}  // namespace fusedsc::aten
