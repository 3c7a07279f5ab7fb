/// Autocast: x and the convolutions' weights and biases take autocast's dtype; BatchNorm's parameters and statistics
/// never do. What fusedsc.fold_batch_norms keeps of weights and biases is read in place of being cast.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <span>

#include "conv_chain_operands.h"
#include "kept_tensors.h"
#include "operators.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// Casts what it is called on, and keeps autocast from running again below.
template <at::DeviceType device>
struct Autocast {
  c10::impl::ExcludeDispatchKeyGuard no_autocast{at::autocast::get_autocast_dispatch_key_from_device_type(device)};
  at::ScalarType dtype = at::autocast::get_autocast_dtype(device);

  template <class OptionalOrTensor>
  OptionalOrTensor operator()(const OptionalOrTensor& tensor) const {
    return at::autocast::cached_cast(dtype, tensor, device);
  }

  /// Parameters, each as above.
  template <std::size_t count>
  std::array<OptionalTensor, count> each(std::array<OptionalTensor, count> parameters) const {
    cast_together(parameters, [this](at::TensorList others) {
      std::vector<Tensor> results;
      for (const Tensor& other : others) results.push_back((*this)(other));
      return results;
    });
    return parameters;
  }

  /// Of those that are given and need it, all at once.
  template <std::size_t count>
  std::array<OptionalTensor, count> together(std::array<OptionalTensor, count> tensors) const {
    return together(tensors, [&](at::TensorList others) { return cast(others, dtype); });
  }
  /// By cast_all, which is given those that need it; `numbers` say what it does besides.
  template <std::size_t count, class Cast>
  std::array<OptionalTensor, count> together(std::array<OptionalTensor, count> tensors, const Cast& cast_all,
                                             at::ArrayRef<double> numbers = {}) const {
    cast_together(tensors, cast_all, numbers);
    return tensors;
  }
  template <class Cast>
  void cast_together(std::span<OptionalTensor> tensors, const Cast& cast_all, at::ArrayRef<double> numbers = {}) const {
    std::vector<Tensor> others;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i] || !is_cast(*tensors[i])) continue;
      others.push_back(*tensors[i]);
      places.push_back(i);
    }
    if (others.empty()) return;
    // What is kept is no tensor that autocast keeps for as long as it is on.
    const auto to_keep = [&] { return numbers.empty() ? cast(others, dtype) : cast_all(others); };
    std::optional<std::vector<Tensor>> kept = kept_casts(others, numbers, dtype, to_keep);
    const std::vector<Tensor> results = kept ? *std::move(kept) : cast_all(others);
    for (std::size_t i = 0; i < places.size(); ++i) tensors[places[i]] = results[i];
  }

  /// As autocast itself decides.
  bool is_cast(const Tensor& tensor) const {
    return at::autocast::is_eligible(tensor, device) && tensor.scalar_type() != dtype &&
           tensor.scalar_type() != at::kDouble;
  }
};

/// Whether the weight is a sliding-channel convolution's behind a depthwise one with this weight. Where it is not, the
/// operator says why.
bool is_sliding_weight(const Tensor& dw_weight, const Tensor& weight, std::int64_t groups, double overlap) {
  if (dw_weight.dim() != 4 || weight.dim() != 4) return false;
  const auto channels = dw_weight.sym_size(0);
  return groups > 0 && channels >= groups && weight.sym_size(0) > 0 && weight.sym_size(1) == channels / groups &&
         weight.sym_size(2) == 1 && weight.sym_size(3) == 1 && overlap >= 0 && overlap < 1;
}

template <at::DeviceType device>
Tensor depthwise_conv2d_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                 IntArrayRef padding, IntArrayRef dilation) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return depthwise_conv2d(cast(x), *own_weight, own_bias, stride, padding, dilation);
}

template <at::DeviceType device>
Tensor pointwise_conv2d_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                 std::int64_t groups) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return pointwise_conv2d(cast(x), *own_weight, own_bias, groups);
}

template <at::DeviceType device>
Tensor sliding_channel_conv2d_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                       std::int64_t groups, double overlap) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return sliding_channel_conv2d(cast(x), *own_weight, own_bias, groups, overlap);
}

template <at::DeviceType device>
Tensor prologue_conv2d_autocast(const Tensor& x, const OptionalTensor& scale, const OptionalTensor& shift,
                                std::string_view prologue, const Tensor& weight, const OptionalTensor& bias,
                                IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                std::string_view activation) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return prologue_conv2d(cast(x), scale, shift, prologue, *own_weight, own_bias, stride, padding, dilation, groups,
                         activation);
}

template <at::DeviceType device>
Tensor ecr_conv2d_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef dilation, std::int64_t groups, std::string_view activation,
                           const OptionalTensor& packed, std::string_view config) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return ecr_conv2d(cast(x), *own_weight, own_bias, stride, padding, dilation, groups, activation, packed, config);
}

template <at::DeviceType device>
Tensor pecr_conv2d_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                            IntArrayRef padding, IntArrayRef pool_size, IntArrayRef pool_stride, IntArrayRef dilation,
                            std::int64_t groups, const OptionalTensor& packed, std::string_view config) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return pecr_conv2d(cast(x), *own_weight, own_bias, stride, padding, pool_size, pool_stride, dilation, groups, packed,
                     config);
}

template <at::DeviceType device>
Tensor from_compressed_autocast(const Tensor& values, const Tensor& channels, const Tensor& counts,
                                const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                std::string_view activation, IntArrayRef pool_size, IntArrayRef pool_stride,
                                const OptionalTensor& packed, bool channels_last, std::string_view config) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return sparse_conv2d_from_compressed(cast(values), channels, counts, *own_weight, own_bias, stride, padding, dilation,
                                       groups, activation, pool_size, pool_stride, packed, channels_last, config);
}

template <at::DeviceType device>
std::tuple<Tensor, Tensor, Tensor> to_compressed_autocast(const Tensor& x, const OptionalTensor& channels,
                                                          const OptionalTensor& counts, const Tensor& weight,
                                                          const OptionalTensor& bias, IntArrayRef stride,
                                                          IntArrayRef padding, IntArrayRef dilation,
                                                          std::int64_t groups, std::string_view activation,
                                                          IntArrayRef pool_size, IntArrayRef pool_stride,
                                                          const OptionalTensor& packed, std::string_view config) {
  const Autocast<device> cast;
  const auto [own_weight, own_bias] = cast.template each<2>({weight, bias});
  return sparse_conv2d_to_compressed(cast(x), channels, counts, *own_weight, own_bias, stride, padding, dilation,
                                     groups, activation, pool_size, pool_stride, packed, config);
}

template <at::DeviceType device>
Tensor dsc_block_autocast(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& bn_weight,
                          const OptionalTensor& bn_bias, const OptionalTensor& running_mean,
                          const OptionalTensor& running_var, const Tensor& pw_weight, const OptionalTensor& dw_bias,
                          const OptionalTensor& pw_bias, bool training, std::optional<double> momentum,
                          const OptionalTensor& num_batches_tracked, double eps, std::string_view activation,
                          IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::optional<bool> recompute,
                          std::int64_t groups, std::optional<double> overlap) {
  refuse_transforms("dsc_block", x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias);
  const Autocast<device> cast;
  // Kernels of blocks on GPUs want a sliding-channel weight expanded, forward and backward: the launch that casts it
  // does that on the way.
  if (device == at::kCUDA && overlap && cast.is_cast(pw_weight) &&
      is_sliding_weight(dw_weight, pw_weight, groups, *overlap)) {
    const auto expanding = [&](at::TensorList tensors) {
      return cast_sliding(tensors, cast.dtype, dw_weight.size(0), groups, *overlap, false);
    };
    const std::array<double, 3> windows = {static_cast<double>(dw_weight.size(0)), static_cast<double>(groups),
                                           *overlap};
    const auto [dw, dw_b, pw_b, pw] =
        cast.template together<4>({dw_weight, dw_bias, pw_bias, pw_weight}, expanding, windows);
    return dsc_block(cast(x), *dw, bn_weight, bn_bias, running_mean, running_var, *pw, dw_b, pw_b, training, momentum,
                     num_batches_tracked, eps, activation, stride, padding, dilation, recompute, 1, std::nullopt);
  }
  const auto [dw, pw, dw_b, pw_b] = cast.template together<4>({dw_weight, pw_weight, dw_bias, pw_bias});
  return dsc_block(cast(x), *dw, bn_weight, bn_bias, running_mean, running_var, *pw, dw_b, pw_b, training, momentum,
                   num_batches_tracked, eps, activation, stride, padding, dilation, recompute, groups, overlap);
}

template <at::DeviceType device>
Tensor conv_bn_act_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                            const OptionalTensor& bn_bias, const OptionalTensor& running_mean,
                            const OptionalTensor& running_var, bool training, std::optional<double> momentum,
                            const OptionalTensor& num_batches_tracked, double eps, std::string_view activation,
                            IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  const Autocast<device> cast;
  const auto [own_weight] = cast.template each<1>({weight});
  return conv_bn_act(cast(x), *own_weight, bn_weight, bn_bias, running_mean, running_var, training, momentum,
                     num_batches_tracked, eps, activation, stride, padding, dilation);
}

template <at::DeviceType device>
Tensor inverted_residual_autocast(const Tensor& x, const OptionalTensor& expand_weight,
                                  const TensorOptionals& expand_bn, const Tensor& dw_weight,
                                  const TensorOptionals& dw_bn, const Tensor& project_weight,
                                  const TensorOptionals& project_bn, bool training,
                                  std::optional<at::ArrayRef<double>> momentum, at::ArrayRef<double> eps,
                                  std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                  IntArrayRef dilation, bool residual, std::optional<bool> recompute,
                                  const OptionalTensor& se_reduce_weight, const OptionalTensor& se_reduce_bias,
                                  const OptionalTensor& se_expand_weight, const OptionalTensor& se_expand_bias,
                                  std::string_view se_activation, std::string_view se_gate) {
  refuse_transforms("inverted_residual", x, expand_weight, expand_bn, dw_weight, dw_bn, project_weight, project_bn,
                    se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias);
  const Autocast<device> cast;
  const auto [expand, dw, project, se_reduce, se_reduce_b, se_expand, se_expand_b] = cast.template together<7>(
      {expand_weight, dw_weight, project_weight, se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias});
  return inverted_residual(cast(x), expand, expand_bn, *dw, dw_bn, *project, project_bn, training, momentum, eps,
                           activation, stride, padding, dilation, residual, recompute, se_reduce, se_reduce_b,
                           se_expand, se_expand_b, se_activation, se_gate);
}

template <at::DeviceType device>
Tensor conv_chain_autocast(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                           const BoolList& has_bn, const TensorOptionals& bns, bool training,
                           at::ArrayRef<double> momenta, at::ArrayRef<double> eps, const StringList& activations,
                           IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
                           bool residual, const OptionalTensor& branch_scale, std::string_view input_activation,
                           std::optional<bool> recompute, std::optional<std::string_view> sync_group,
                           std::int64_t sync_size) {
  // The operator casts weights and biases itself: no node of autograd for them, and one launch for each direction.
  const Autocast<device> cast;
  return conv_chain_of_types(cast(x), weights, biases, has_bn, bns, training, momenta, eps, activations, strides,
                             paddings, dilations, groups, residual, branch_scale, input_activation, recompute,
                             sync_group, sync_size, WeightTypes::cast_too);
}

template <at::DeviceType device>
void register_casts(torch::Library& m) {
  m.impl("depthwise_conv2d", translated<depthwise_conv2d_autocast<device>>);
  m.impl("pointwise_conv2d", translated<pointwise_conv2d_autocast<device>>);
  m.impl("sliding_channel_conv2d", translated<sliding_channel_conv2d_autocast<device>>);
  m.impl("_prologue_conv2d", translated<prologue_conv2d_autocast<device>>);
  m.impl("ecr_conv2d", translated<ecr_conv2d_autocast<device>>);
  m.impl("pecr_conv2d", translated<pecr_conv2d_autocast<device>>);
  m.impl("_sparse_conv2d_from_compressed", translated<from_compressed_autocast<device>>);
  m.impl("_sparse_conv2d_to_compressed", translated<to_compressed_autocast<device>>);
  m.impl("dsc_block", translated<dsc_block_autocast<device>>);
  m.impl("conv_bn_act", translated<conv_bn_act_autocast<device>>);
  m.impl("inverted_residual", translated<inverted_residual_autocast<device>>);
  m.impl("conv_chain", translated<conv_chain_autocast<device>>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, AutocastCPU, m) { register_casts<at::kCPU>(m); }
TORCH_LIBRARY_IMPL(fusedsc, AutocastCUDA, m) { register_casts<at::kCUDA>(m); }

}  // namespace fusedsc::aten
