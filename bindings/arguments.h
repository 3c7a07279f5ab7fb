/// What kernels, fake kernels and autograd all ask of their arguments. Sizes may be symbolic (torch.compile with
/// dynamic shapes). What is wrong is thrown as fusedsc::InvalidArgument, a ValueError in Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <array>
#include <optional>
#include <tuple>

#include "fusedsc/common/problem.h"

namespace fusedsc::aten {

using SymSizes = std::array<c10::SymInt, 4>;

/// `x` must have four dimensions and floating-point elements.
void check_activation(const char* name, const at::Tensor& x);
/// What dtypes weights and biases may have: that of x; or, where autocast has left the cast to the operator, any that
/// autocast casts.
enum class WeightTypes { of_x, cast_too };

/// `weight` must have four dimensions, and x's dtype and device.
void check_weight(const char* name, const at::Tensor& weight, const at::Tensor& x,
                  WeightTypes types = WeightTypes::of_x);
/// `bias`, if given, must be [channels], with x's dtype and device.
void check_bias(const char* name, const std::optional<at::Tensor>& bias, const at::Tensor& x,
                const c10::SymInt& channels, WeightTypes types = WeightTypes::of_x);
/// A parameter or buffer of BatchNorm, if given, must be [channels], floating point and on x's device.
void check_batch_norm_vector(const char* name, const std::optional<at::Tensor>& vector, const at::Tensor& x,
                             const c10::SymInt& channels);
/// Batch statistics need more than one value per channel, as F.batch_norm says too.
void check_batch_size(const SymSizes& sizes);
/// `statistics`, if given, must have rows mean and 1/sqrt(var + eps) of x's accumulation type.
void check_statistics(const std::optional<at::Tensor>& statistics, const at::Tensor& x, const c10::SymInt& channels);
/// `grad_y` must have y's sizes, dtype and device.
void check_gradient(const at::Tensor& grad_y, const SymSizes& y, const at::Tensor& x);

/// {vertical, horizontal} of one or two numbers; `name` is what users call them.
std::array<std::int64_t, 2> pair_of(const char* name, at::IntArrayRef numbers);

/// The window from its weight and the numbers a user gives: `stride` and `dilation` one or two, `padding` one,
/// (vertical, horizontal) or (left, right, top, bottom).
Window window_of(const at::Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation);

/// The sizes of a convolution's result; what does not fit is said by the library's functions of these names.
SymSizes depthwise_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, const Window& window);
SymSizes conv_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, const Window& window);
SymSizes pointwise_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, std::int64_t groups);
SymSizes sliding_channel_output_sizes(c10::SymIntArrayRef x, c10::SymIntArrayRef weight, std::int64_t groups,
                                      double overlap);

inline at::MemoryFormat memory_format_of(bool channels_last) {
  return channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

/// Uninitialised: dtype, device and memory format of `x` (dense, as its strides suggest).
at::Tensor empty_activation(c10::SymIntArrayRef sizes, const at::Tensor& x);
/// Uninitialised, with exactly the strides of `parameter` (DistributedDataParallel relies on it), or undefined.
at::Tensor empty_gradient(const std::optional<at::Tensor>& parameter, bool wanted);
/// The gradients of an empty batch: zero, those that are defined.
template <class Gradients>
Gradients zeroed(const Gradients& gradients) {
  std::apply([](const auto&... tensors) { (static_cast<void>(tensors.defined() && tensors.zero_().defined()), ...); },
             gradients);
  return gradients;
}

}  // namespace fusedsc::aten
