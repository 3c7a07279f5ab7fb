/// The operators as C++ programs with libtorch call them. Every call goes through PyTorch's dispatcher, so autograd,
/// autocast and tracing apply. fusedsc.functional documents the arguments; schemas.cpp has the schemas.
#pragma once

#include <ATen/core/ATen_fwd.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace fusedsc::aten {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using TensorOptionals = c10::List<std::optional<Tensor>>;
using BoolList = c10::List<bool>;
using StringList = c10::List<std::string>;

Tensor depthwise_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {}, IntArrayRef stride = 1,
                        IntArrayRef padding = 0, IntArrayRef dilation = 1);

Tensor pointwise_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {},
                        std::int64_t groups = 1);
Tensor sliding_channel_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {},
                              std::int64_t groups = 2, double overlap = 0.5);

/// activation(convolution(prologue(scale*x + shift)) + bias), for inference.
Tensor prologue_conv2d(const Tensor& x, const OptionalTensor& scale, const OptionalTensor& shift,
                       std::string_view prologue, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation);

Tensor ecr_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {}, IntArrayRef stride = 1,
                  IntArrayRef padding = 0, IntArrayRef dilation = 1, std::int64_t groups = 1,
                  std::string_view activation = "identity", const OptionalTensor& packed = {},
                  std::string_view config = "");
Tensor pecr_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias = {}, IntArrayRef stride = 1,
                   IntArrayRef padding = 0, IntArrayRef pool_size = 2, IntArrayRef pool_stride = 2,
                   IntArrayRef dilation = 1, std::int64_t groups = 1, const OptionalTensor& packed = {},
                   std::string_view config = "");
Tensor pack_sparse_weight(const Tensor& weight, std::int64_t groups);
/// Of a compressed map (fusedsc.CompressedMap); pooling of one by one is none.
Tensor sparse_conv2d_from_compressed(const Tensor& values, const Tensor& channels, const Tensor& counts,
                                     const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                     IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                     std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride,
                                     const OptionalTensor& packed, bool channels_last, std::string_view config = "");
/// Of a dense map, or with channels and counts of a compressed one, of which x are the values.
std::tuple<Tensor, Tensor, Tensor> sparse_conv2d_to_compressed(
    const Tensor& x, const OptionalTensor& channels, const OptionalTensor& counts, const Tensor& weight,
    const OptionalTensor& bias, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
    std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride, const OptionalTensor& packed,
    std::string_view config = "");

Tensor dsc_block(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& bn_weight,
                 const OptionalTensor& bn_bias, const OptionalTensor& running_mean, const OptionalTensor& running_var,
                 const Tensor& pw_weight, const OptionalTensor& dw_bias, const OptionalTensor& pw_bias, bool training,
                 std::optional<double> momentum = 0.1, const OptionalTensor& num_batches_tracked = {},
                 double eps = 1e-5, std::string_view activation = "relu6", IntArrayRef stride = 1,
                 IntArrayRef padding = 1, IntArrayRef dilation = 1, std::optional<bool> recompute = {},
                 std::int64_t groups = 1, std::optional<double> overlap = {});

Tensor conv_bn_act(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                   const OptionalTensor& bn_bias, const OptionalTensor& running_mean, const OptionalTensor& running_var,
                   bool training, std::optional<double> momentum = 0.1, const OptionalTensor& num_batches_tracked = {},
                   double eps = 1e-5, std::string_view activation = "relu6", IntArrayRef stride = 1,
                   IntArrayRef padding = 0, IntArrayRef dilation = 1);

Tensor inverted_residual(const Tensor& x, const OptionalTensor& expand_weight, const TensorOptionals& expand_bn,
                         const Tensor& dw_weight, const TensorOptionals& dw_bn, const Tensor& project_weight,
                         const TensorOptionals& project_bn, bool training, std::optional<at::ArrayRef<double>> momentum,
                         at::ArrayRef<double> eps, std::string_view activation = "relu6", IntArrayRef stride = 1,
                         IntArrayRef padding = 1, IntArrayRef dilation = 1, bool residual = false,
                         std::optional<bool> recompute = {}, const OptionalTensor& se_reduce_weight = {},
                         const OptionalTensor& se_reduce_bias = {}, const OptionalTensor& se_expand_weight = {},
                         const OptionalTensor& se_expand_bias = {}, std::string_view se_activation = "relu",
                         std::string_view se_gate = "hardsigmoid");

/// Each list has an element for each convolution; `bns` five, strides and dilations two, paddings four (left, right,
/// top, bottom). A momentum that is NaN is the cumulative average.
/// `sync_group` is the name of a group of `sync_size` processes over which statistics are taken in training.
Tensor conv_chain(const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
                  const TensorOptionals& bns, bool training, at::ArrayRef<double> momenta, at::ArrayRef<double> eps,
                  const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                  IntArrayRef groups, bool residual = false, const OptionalTensor& branch_scale = {},
                  std::string_view input_activation = "identity", std::optional<bool> recompute = {},
                  std::optional<std::string_view> sync_group = {}, std::int64_t sync_size = 1);

// What they are made of.

std::vector<Tensor> cast(at::TensorList tensors, at::ScalarType dtype);
std::vector<Tensor> cast_sliding(at::TensorList tensors, at::ScalarType dtype, std::int64_t channels,
                                 std::int64_t groups, double overlap, bool gathers);

Tensor change_layout(const Tensor& x, bool channels_last);

Tensor fold_batch_norms(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, bool is_double);

using Tensors2 = std::tuple<Tensor, Tensor>;
using Tensors3 = std::tuple<Tensor, Tensor, Tensor>;
using Tensors4 = std::tuple<Tensor, Tensor, Tensor, Tensor>;
using Tensors7 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensors9 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Tensors14 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                             Tensor, Tensor, Tensor>;

Tensors3 depthwise_conv2d_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, IntArrayRef stride,
                                   IntArrayRef padding, IntArrayRef dilation, std::array<bool, 3> output_mask);

Tensors3 pointwise_conv2d_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, std::int64_t groups,
                                   std::array<bool, 3> output_mask);
Tensors3 sliding_channel_conv2d_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                         std::int64_t groups, double overlap, std::array<bool, 3> output_mask);

Tensors3 dsc_block_forward(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& dw_bias,
                           const OptionalTensor& bn_weight, const OptionalTensor& bn_bias, const Tensor& pw_weight,
                           const OptionalTensor& pw_bias, const OptionalTensor& statistics, double eps,
                           std::string_view activation, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                           std::optional<bool> recompute, std::int64_t groups = 1, std::optional<double> overlap = {});

Tensors7 dsc_block_backward(const Tensor& grad_y, const Tensor& x, const Tensor& dw_weight,
                            const OptionalTensor& dw_bias, const OptionalTensor& bn_weight,
                            const OptionalTensor& bn_bias, const Tensor& pw_weight, const Tensor& statistics,
                            const Tensor& d, bool training, std::string_view activation, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef dilation, std::optional<bool> recompute,
                            std::array<bool, 7> output_mask, std::int64_t groups = 1,
                            std::optional<double> overlap = {}, double eps = 1e-5);

Tensors2 conv_bn_act_forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                             const OptionalTensor& bn_bias, const OptionalTensor& statistics, double eps,
                             std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                             IntArrayRef dilation);

Tensors4 conv_bn_act_backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                              const OptionalTensor& bn_weight, const OptionalTensor& bn_bias, const Tensor& statistics,
                              bool training, std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                              IntArrayRef dilation, std::array<bool, 4> output_mask);

Tensors9 gated_residual_forward(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                const TensorOptionals& se_parameters, const OptionalTensor& statistics,
                                at::ArrayRef<double> eps, std::string_view activation, std::string_view se_activation,
                                std::string_view se_gate, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                bool residual, bool recompute, bool repeats = false);

Tensors14 gated_residual_backward(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                  const Tensor& dw_weight, const Tensor& project_weight,
                                  const TensorOptionals& bn_parameters, const TensorOptionals& se_parameters,
                                  const Tensor& statistics, at::TensorList stored, bool training,
                                  std::string_view activation, std::string_view se_activation, std::string_view se_gate,
                                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool residual,
                                  std::array<bool, 14> output_mask);

std::tuple<Tensor, Tensor, std::vector<Tensor>> conv_chain_forward(
    const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
    const TensorOptionals& bn_parameters, const OptionalTensor& statistics, at::ArrayRef<double> eps,
    const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
    bool residual, const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute,
    std::optional<std::string_view> sync_group, std::int64_t sync_size, bool repeats = false);

std::vector<Tensor> conv_chain_backward(const Tensor& grad_y, const Tensor& x, at::TensorList weights,
                                        const TensorOptionals& biases, const BoolList& has_bn,
                                        const TensorOptionals& bn_parameters, const Tensor& statistics,
                                        at::TensorList raw, bool training, const StringList& activations,
                                        IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                                        IntArrayRef groups, bool residual, const OptionalTensor& branch_scale,
                                        std::string_view input_activation, const BoolList& output_mask,
                                        std::optional<std::string_view> sync_group, std::int64_t sync_size);

}  // namespace fusedsc::aten
