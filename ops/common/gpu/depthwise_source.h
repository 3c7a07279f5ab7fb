/// Where the depthwise kernels get rows of activations and of output gradients from: kChannels neighbouring channels of
/// kColumns neighbouring columns, zero outside of the image, through the prologue where there is one (kSeams). Loading
/// and widening are two steps, so that a row can be on its way while others are computed with.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/tensor.h"

namespace fusedsc::gpu {

/// Some columns of an image, whose rows are loaded one after the other. What lies outside of the image is loaded from
/// within it and masked: no branches, so that the loads of a row leave together.
template <class T, int kChannels, int kColumns>
struct ColumnWindow {
  struct Row {
    Vector<T, kChannels> columns[kColumns];
    std::uint32_t mask;  ///< all bits set if the row is inside of the image, else none
  };

  const T* image = nullptr;  ///< row 0
  const T* next = nullptr;   ///< the row that is loaded next; outside of the image it is not read
  std::int64_t row_stride = 0;
  int next_row = 0, height = 0;
  int offsets[kColumns];          ///< from the begin of a row
  std::uint32_t masks[kColumns];  ///< all bits set if the column is inside of the image, else none

  FUSEDSC_DEVICE void aim(const ConstDeviceTensor& tensor, int n, int channel, int row, int column, int height_,
                          int width) {
    image = elements_of<T>(tensor) + tensor.offset(n, channel, 0, 0);
    row_stride = tensor.row;
    next = image + row * row_stride;
    next_row = row;
    height = height_;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const bool inside = column + c >= 0 && column + c < width;
      offsets[c] = inside ? (column + c) * static_cast<int>(tensor.column) : 0;
      masks[c] = inside ? ~0u : 0u;
    }
  }

  FUSEDSC_DEVICE void load(Row& to) {
    const bool inside = next_row >= 0 && next_row < height;
    const T* row = inside ? next : image;
    to.mask = inside ? ~0u : 0u;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) to.columns[c] = gpu::load<kChannels>(row + offsets[c]);
    next += row_stride;
    ++next_row;
  }

  FUSEDSC_DEVICE bool has(const Row& row, int c) const { return (row.mask & masks[c]) != 0; }

  FUSEDSC_DEVICE static void widen(const Row& row, Accumulator<T> (&to)[kColumns * kChannels]) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) row.columns[c].widen(to + c * kChannels);
  }

  FUSEDSC_DEVICE void widen_inside(const Row& row, Accumulator<T> (&to)[kColumns * kChannels]) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      Vector<T, kChannels> column = row.columns[c];
      column.keep(row.mask, masks[c]);
      column.widen(to + c * kChannels);
    }
  }

  FUSEDSC_DEVICE void zero_outside(const Row& row, Accumulator<T> (&x)[kColumns * kChannels]) const {
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) x[i] = has(row, i / kChannels) ? x[i] : 0;
  }
};

struct DevicePrologue {
  const void *scale = nullptr, *shift = nullptr;
  Activation activation = Activation::identity;
};

/// activation(scale*x + shift)
template <class T, int kChannels, int kColumns, bool kSeams>
struct ActivationSource {
  using A = Accumulator<T>;
  using Window = ColumnWindow<T, kChannels, kColumns>;
  using Row = typename Window::Row;

  Window window;
  A scale[kChannels], shift[kChannels];
  Activation activation;

  FUSEDSC_DEVICE void set_channel(const DevicePrologue& prologue, int channel) {
    if constexpr (kSeams) {
      load_channels(prologue.scale, channel, A(1), scale, A());
      load_channels(prologue.shift, channel, A(0), shift, A());
      activation = prologue.activation;
    }
  }

  FUSEDSC_DEVICE void load(Row& to) { window.load(to); }

  /// scale*x + shift
  FUSEDSC_DEVICE void affine(A (&x)[kColumns * kChannels]) const {
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) x[i] = x[i] * scale[i % kChannels] + shift[i % kChannels];
  }

  FUSEDSC_DEVICE void widen(const Row& row, A (&to)[kColumns * kChannels]) const {
    if constexpr (kSeams) {
      Window::widen(row, to);
      affine(to);
      activate(activation, to);
      window.zero_outside(row, to);
    } else {
      window.widen_inside(row, to);
    }
  }
};

struct DeviceGradientPrologue {
  const void *grad_scale = nullptr, *output_scale = nullptr, *offset = nullptr;
  ConstDeviceTensor output;
};

/// grad_scale*grad_y + output_scale*output + offset
template <class T, int kChannels, int kColumns, bool kSeams>
struct GradientSource {
  using A = Accumulator<T>;
  using Window = ColumnWindow<T, kChannels, kColumns>;
  struct Row {
    typename Window::Row grad, output;
  };

  Window grad, output;
  bool has_output = false;
  A grad_scale[kChannels], output_scale[kChannels], offset[kChannels];

  FUSEDSC_DEVICE void set_channel(const DeviceGradientPrologue& prologue, int channel) {
    if constexpr (kSeams) {
      load_channels(prologue.grad_scale, channel, A(1), grad_scale, A());
      load_channels(prologue.output_scale, channel, A(0), output_scale, A());
      load_channels(prologue.offset, channel, A(0), offset, A());
      has_output = prologue.output.data != nullptr;
    }
  }

  FUSEDSC_DEVICE void aim(const ConstDeviceTensor& grad_y, const DeviceGradientPrologue& prologue, int image,
                          int channel, int row, int column, int height, int width) {
    grad.aim(grad_y, image, channel, row, column, height, width);
    if constexpr (kSeams) {
      if (has_output) output.aim(prologue.output, image, channel, row, column, height, width);
    }
  }

  FUSEDSC_DEVICE void load(Row& to) {
    grad.load(to.grad);
    if constexpr (kSeams) {
      if (has_output) output.load(to.output);
    }
  }

  FUSEDSC_DEVICE void widen(const Row& row, A (&to)[kColumns * kChannels]) const {
    grad.widen_inside(row.grad, to);
    if constexpr (kSeams) {
      if (!has_output) return;
      A raw[kColumns * kChannels];
      Window::widen(row.output, raw);
#pragma unroll
      for (int i = 0; i < kColumns * kChannels; ++i) {
        const int v = i % kChannels;
        to[i] = to[i] * grad_scale[v] + (raw[i] * output_scale[v] + offset[v]);
      }
      grad.zero_outside(row.grad, to);
    }
  }
};

/// kHeight * kWidth weights of each of kChannels channels, [tap][channel].
template <class T, int kHeight, int kWidth, int kChannels>
FUSEDSC_DEVICE void load_weights(const ConstDeviceTensor& weight, int channel,
                                 Accumulator<T> (&to)[kHeight * kWidth * kChannels]) {
#pragma unroll
  for (int v = 0; v < kChannels; ++v) {
    const T* from = elements_of<T>(weight) + (channel + v) * weight.image;
#pragma unroll
    for (int tap = 0; tap < kHeight * kWidth; ++tap) {
      const int offset = tap / kWidth * static_cast<int>(weight.row) + tap % kWidth * static_cast<int>(weight.column);
      to[tap * kChannels + v] = to_accumulator(from[offset]);
    }
  }
}

}  // namespace fusedsc::gpu
