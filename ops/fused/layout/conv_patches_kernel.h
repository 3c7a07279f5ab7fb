/// The passes of conv_patches.h on GPUs, a thread per element of what they write.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/tensor.h"

namespace fusedsc::gpu {

inline constexpr int kPatchThreads = 256;

/// Which element of a tensor a thread has: neighbouring threads have neighbours in memory.
struct ElementGrid {
  Divisor image_blocks, inner, middle;
  std::uint32_t image_elements = 0;
  bool channels_last = false;  ///< else columns are innermost

  struct Place {
    int image, channel, row, column;
    bool exists;
  };

  FUSEDSC_DEVICE Place place() const {
    std::uint32_t block = block_index();
    const int image = static_cast<int>(image_blocks.divide(block));
    std::uint32_t first = block * kPatchThreads + static_cast<std::uint32_t>(thread_index());
    const bool exists = first < image_elements;
    std::uint32_t second = inner.divide(first);
    const std::uint32_t third = middle.divide(second);
    const int a = static_cast<int>(first), b = static_cast<int>(second), c = static_cast<int>(third);
    return channels_last ? Place{image, a, c, b, exists} : Place{image, c, b, a, exists};
  }
};

struct ConvPatchesParameters {
  ConstDeviceTensor from;
  DeviceTensor to;
  ElementGrid grid;
  Divisor by_inner, by_middle;  ///< of an element of a patch: its channels or its columns, and what comes then
  bool channels_last = false;   ///< its order
  int channels = 0, kernel_height = 1, kernel_width = 1, stride_height = 1, stride_width = 1, dilation_height = 1,
      dilation_width = 1, padding_top = 0, padding_left = 0;
  int height = 0, width = 0;  ///< of `from`
};

template <class T>
FUSEDSC_DEVICE void gather_patches(const ConvPatchesParameters& p) {
  const ElementGrid::Place to = p.grid.place();
  if (!to.exists) return;
  std::uint32_t first = static_cast<std::uint32_t>(to.channel);
  std::uint32_t second = p.by_inner.divide(first);
  const std::uint32_t third = p.by_middle.divide(second);
  // (c, kh, kw), the last innermost; or (kh, kw, c).
  const int channel = static_cast<int>(p.channels_last ? first : third);
  const int kh = static_cast<int>(p.channels_last ? third : second);
  const int kw = static_cast<int>(p.channels_last ? second : first);
  const int row = to.row * p.stride_height + kh * p.dilation_height - p.padding_top;
  const int column = to.column * p.stride_width + kw * p.dilation_width - p.padding_left;
  T value{};
  if (row >= 0 && row < p.height && column >= 0 && column < p.width) {
    value = elements_of<T>(p.from)[p.from.offset(to.image, channel, row, column)];
  }
  elements_of<T>(p.to)[p.to.offset(to.image, to.channel, to.row, to.column)] = value;
}

template <class T>
FUSEDSC_DEVICE void scatter_patches(const ConvPatchesParameters& p) {
  const ElementGrid::Place to = p.grid.place();
  if (!to.exists) return;
  Accumulator<T> sum = 0;
  for (int kh = 0; kh < p.kernel_height; ++kh) {
    const int from_top = to.row + p.padding_top - kh * p.dilation_height, row = from_top / p.stride_height;
    if (from_top < 0 || from_top != row * p.stride_height || row >= p.height) continue;
    for (int kw = 0; kw < p.kernel_width; ++kw) {
      const int from_left = to.column + p.padding_left - kw * p.dilation_width, column = from_left / p.stride_width;
      if (from_left < 0 || from_left != column * p.stride_width || column >= p.width) continue;
      const int element = p.channels_last ? (kh * p.kernel_width + kw) * p.channels + to.channel
                                          : (to.channel * p.kernel_height + kh) * p.kernel_width + kw;
      sum += to_accumulator(elements_of<T>(p.from)[p.from.offset(to.image, element, row, column)]);
    }
  }
  from_accumulator(sum, elements_of<T>(p.to)[p.to.offset(to.image, to.channel, to.row, to.column)]);
}

struct BatchNormGradientParameters {
  ConstDeviceTensor x, grad_y;
  DeviceTensor out;
  ElementGrid grid;
  const void *scale = nullptr, *shift = nullptr, *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  Activation activation = Activation::identity;
};

template <class T>
FUSEDSC_DEVICE void batch_norm_gradient(const BatchNormGradientParameters& p) {
  using A = Accumulator<T>;
  const ElementGrid::Place at = p.grid.place();
  if (!at.exists) return;
  const auto value = [&](const void* vector) { return static_cast<const A*>(vector)[at.channel]; };
  const A x = to_accumulator(elements_of<T>(p.x)[p.x.offset(at.image, at.channel, at.row, at.column)]);
  const A z[1] = {x * value(p.scale) + value(p.shift)};
  A g[1] = {to_accumulator(elements_of<T>(p.grad_y)[p.grad_y.offset(at.image, at.channel, at.row, at.column)])};
  activate_backward(p.activation, z, g);
  A out = value(p.grad_scale) * g[0];
  if (p.output_scale != nullptr) out += value(p.output_scale) * x + value(p.offset);
  from_accumulator(out, elements_of<T>(p.out)[p.out.offset(at.image, at.channel, at.row, at.column)]);
}

}  // namespace fusedsc::gpu
