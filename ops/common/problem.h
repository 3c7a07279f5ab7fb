/// The geometry of a convolution, and the prologues and epilogues through which BatchNorm and activations pass.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "fusedsc/common/tensor_view.h"

namespace fusedsc {

struct Padding {
  std::int64_t left = 0, right = 0, top = 0, bottom = 0;
};

/// How a kernel window moves over the input: {vertical, horizontal} pairs.
struct Window {
  std::array<std::int64_t, 2> kernel{1, 1};
  std::array<std::int64_t, 2> stride{1, 1};
  std::array<std::int64_t, 2> dilation{1, 1};
  Padding padding{};

  /// floor((in + padding - dilation*(kernel-1) - 1) / stride) + 1 per axis. Throws InvalidArgument on a zero or
  /// negative kernel, stride or dilation, negative padding, or a kernel larger than the padded input.
  std::int64_t output_height(std::int64_t input_height) const;
  std::int64_t output_width(std::int64_t input_width) const;
};

/// TensorFlow's "same": output = ceil(input / stride), the odd padding element on the right and bottom.
Padding same_padding(std::int64_t height, std::int64_t width, const Window& window);

enum class Activation { identity, relu, relu6, silu, hardswish, gelu };

/// Whether it is constant or the identity, piece by piece.
constexpr bool only_clamps(Activation activation) { return activation <= Activation::relu6; }

/// Throws InvalidArgument, listing the names allowed, for an unknown name.
Activation activation_from_name(const std::string& name);
const char* name_of(Activation activation);

/// What happens to each input element as it is loaded: activation(scale[c]*x + shift[c]), before zero padding.
/// Both vectors empty and `identity`: the element as it is.
struct Prologue {
  ConstChannelVector scale;  ///< [C_in], or empty for 1
  ConstChannelVector shift;  ///< [C_in], or empty for 0
  Activation activation = Activation::identity;

  explicit operator bool() const { return scale || shift || activation != Activation::identity; }
};

/// What happens to each output element as it is stored (inference): activation(scale[c]*y + shift[c]) + residual.
struct Epilogue {
  ConstChannelVector scale;  ///< [C_out], or empty for 1
  ConstChannelVector shift;  ///< [C_out], or empty for 0
  Activation activation = Activation::identity;
  ConstTensorView residual;  ///< y's sizes and dtype, any strides; or empty

  explicit operator bool() const {
    return scale || shift || activation != Activation::identity || static_cast<bool>(residual);
  }
};

/// BatchNorm's arithmetic on the statistics of a tensor, for the prologue that will normalise it:
///   invstd = 1/sqrt(m2/count + eps), scale = weight*invstd, shift = bias - mean*scale.
/// Vectors are [C_out], accumulation type.
struct Normaliser {
  ConstChannelVector weight, bias;  ///< or empty for 1 and 0
  double eps = 0;
  ChannelVector invstd;  ///< written; may be the same memory as m2
  /// Written, as running statistics want it: unbiased, m2/(count - 1), of one value 0; may be empty.
  ChannelVector variance;
  ChannelVector scale, shift;  ///< written; may be empty

  explicit operator bool() const { return static_cast<bool>(invstd); }
};

/// Per-channel statistics of the raw output (bias added, epilogue not yet applied) over N, H and W.
struct Statistics {
  ChannelVector mean;          ///< [C_out]
  ChannelVector m2;            ///< [C_out] sum of squared deviations from the mean
  Normaliser normaliser = {};  ///< what is made of them at once; or nothing
  /// On a GPU: behind them comes a pointwise convolution, which may start while they are put together.
  bool is_before_pointwise = false;

  explicit operator bool() const { return static_cast<bool>(mean); }
};

/// BatchNorm's backward applied to the output gradient as it is loaded:
/// grad_scale[c]*grad_y + output_scale[c]*output + offset[c], where `output` is the raw output of the forward pass.
struct GradientPrologue {
  ConstChannelVector grad_scale;    ///< [C_out]
  ConstChannelVector output_scale;  ///< [C_out]
  ConstChannelVector offset;        ///< [C_out]
  ConstTensorView output;           ///< raw y, sizes and dtype of grad_y, any strides
  /// A promise: `output` is the convolution of x as it is, with nothing added. It may be computed instead of read.
  bool output_is_of_x = false;

  explicit operator bool() const { return static_cast<bool>(grad_scale); }
};

/// BatchNorm's backward arithmetic on the sums of a gradient g, for the gradient prologue that will apply it:
///   grad_weight = sum g*(x - mean) * invstd, grad_bias = sum g,
///   dx = grad_scale*g + output_scale*x + offset.
/// Vectors are [C_in], accumulation type.
struct GradientNormaliser {
  ConstChannelVector weight;  ///< or empty for 1
  ConstChannelVector invstd;
  bool training = true;                            ///< in eval mode dx is of g alone: gradient_prologue_of
  ChannelVector grad_scale, output_scale, offset;  ///< written
  ChannelVector grad_weight, grad_bias;            ///< written; may be empty

  explicit operator bool() const { return static_cast<bool>(grad_scale); }
};

/// What BatchNorm's backward needs of the gradient g at the output of its affine map: sums over N, H and W.
struct GradientSums {
  ConstChannelVector mean;             ///< [C_in] mean of the raw input
  ChannelVector grad;                  ///< [C_in] sum of g
  ChannelVector grad_times_centered;   ///< [C_in] sum of g*(x - mean)
  GradientNormaliser normaliser = {};  ///< what is made of them at once; or nothing

  explicit operator bool() const { return static_cast<bool>(grad); }
};

}  // namespace fusedsc
