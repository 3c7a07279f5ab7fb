/// What the fused block's kernels in eval mode on Hopper GPUs are told of the block itself, whatever their tiles are.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/fused/dsc_block.h"

namespace fusedsc::gpu::hopper {

struct DscBlockProblem {
  ConstDeviceTensor raw_x, dw_weight;  ///< raw_x: x again, where single elements are read
  const void *dw_bias = nullptr, *pw_bias = nullptr;
  const void *bn_weight = nullptr, *bn_bias = nullptr, *mean = nullptr, *invstd = nullptr;
  Activation activation = Activation::identity;
  const void *epilogue_scale = nullptr, *epilogue_shift = nullptr;
  Activation epilogue_activation = Activation::identity;
  DeviceTensor y;
  int channels = 0, outputs = 0;
  int input_height = 0, input_width = 0, output_height = 0, output_width = 0, padding_top = 0, padding_left = 0;

  /// All that does not depend on addresses.
  void set_sizes(const DscBlockArguments& block) {
    const Sizes &x_sizes = block.x.sizes, &y_sizes = block.y.sizes;
    channels = static_cast<int>(x_sizes[1]);
    outputs = static_cast<int>(y_sizes[1]);
    input_height = static_cast<int>(x_sizes[2]);
    input_width = static_cast<int>(x_sizes[3]);
    output_height = static_cast<int>(y_sizes[2]);
    output_width = static_cast<int>(y_sizes[3]);
    padding_top = static_cast<int>(block.window.padding.top);
    padding_left = static_cast<int>(block.window.padding.left);
    activation = block.activation;
    epilogue_activation = block.epilogue.activation;
  }

  void set_tensors(const DscBlockArguments& block) {
    raw_x = block.x;
    dw_weight = block.dw_weight;
    dw_bias = block.dw_bias.data;
    pw_bias = block.pw_bias.data;
    if (block.scale) {  // of a mean of 0, with nothing left to multiply by
      invstd = block.scale.data;
      bn_bias = block.shift.data;
    } else {
      bn_weight = block.bn_weight.data;
      bn_bias = block.bn_bias.data;
      mean = block.mean.data;
      invstd = block.invstd.data;
    }
    epilogue_scale = block.epilogue.scale.data;
    epilogue_shift = block.epilogue.shift.data;
    y = block.y;
  }

  struct AffineMap {
    float scale, shift;
  };

  /// BatchNorm and the depthwise bias; zeros where there is no such channel.
  template <class T>
  FUSEDSC_DEVICE AffineMap channel_map(int channel) const {
    if (channel >= channels) return {0, 0};
    const float scale = value_or(bn_weight, channel, 1.0f) * value_or(invstd, channel, 1.0f);
    float center = value_or(mean, channel, 0.0f);
    if (dw_bias != nullptr) center -= to_accumulator(static_cast<const T*>(dw_bias)[channel]);
    return {scale, value_or(bn_bias, channel, 0.0f) - center * scale};
  }

  /// The epilogue and the pointwise bias, likewise.
  template <class T>
  FUSEDSC_DEVICE AffineMap output_map(int output) const {
    if (output >= outputs) return {0, 0};
    const float scale = value_or(epilogue_scale, output, 1.0f);
    const float bias = pw_bias != nullptr ? to_accumulator(static_cast<const T*>(pw_bias)[output]) : 0.0f;
    return {scale, value_or(epilogue_shift, output, 0.0f) + scale * bias};
  }

  /// An element of the depthwise product, straight from x and the weight; zero outside of it.
  template <class T, int kKernel, int kStride>
  FUSEDSC_DEVICE float window_sum(int image, int channel, int row, int column) const {
    if (channel >= channels || row >= output_height || column >= output_width) return 0;
    float sum = 0;
#pragma unroll 1
    for (int tap = 0; tap < kKernel * kKernel && sum == sum; ++tap) {  // a NaN stays one, whatever follows
      const int kh = tap / kKernel, kw = tap % kKernel;
      const int h = row * kStride - padding_top + kh, w = column * kStride - padding_left + kw;
      if (h < 0 || h >= input_height || w < 0 || w >= input_width) continue;
      sum += to_accumulator(elements_of<T>(raw_x)[raw_x.offset(image, channel, h, w)]) *
             to_accumulator(elements_of<T>(dw_weight)[dw_weight.offset(channel, 0, kh, kw)]);
    }
    return sum;
  }
};

}  // namespace fusedsc::gpu::hopper
