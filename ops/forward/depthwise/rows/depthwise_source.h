/// Where the depthwise kernels get rows of activations and of output gradients from: kChannels neighbouring channels of
/// kColumns neighbouring columns, zero outside of the image, through the prologue where there is one (kFused). Loading
/// and widening are two steps, so that a row can be on its way while others are computed with.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/sums/item_work.h"
#include "fusedsc/common/gpu/tensors/tensor.h"

namespace fusedsc::gpu {

/// Some columns of an image, whose rows are loaded one after the other: to registers, or copied to shared memory first.
/// To registers what lies outside of the image is loaded from within it and masked: no branches, so that the loads of a
/// row leave together. Copies write zeros instead.
template <class T, int kChannels, int kColumns, bool kInMemory>
struct ColumnWindow {
  struct Row {
    Vector<T, kChannels> columns[kColumns];
    std::uint32_t mask;  ///< all bits set if the row is inside of the image, else none
  };
  static constexpr int kVectorBytes = Vector<T, kChannels>::kBytes;
  static constexpr int kRowBytes = kVectorBytes * kColumns;  ///< of a thread, in shared memory

  const T* image = nullptr;  ///< row 0
  const T* next = nullptr;   ///< the row that is loaded next; outside of the image it is not read
  std::int64_t row_stride = 0, column_stride = 0;
  int next_row = 0, height = 0;
  int arrived_row = 0;            ///< the row whose copy is read next
  std::uint32_t inside = 0;       ///< bit c: column c is inside of the image
  int offsets[kColumns];          ///< from the begin of a row, for rows that go to registers
  std::uint32_t masks[kColumns];  ///< all bits set if the column is inside of the image, else none; likewise

  FUSEDSC_DEVICE void aim(const ConstDeviceTensor& tensor, int n, int channel, int row, int column, int height_,
                          int width) {
    image = elements_of<T>(tensor) + tensor.offset(n, channel, 0, 0);
    row_stride = tensor.row;
    column_stride = tensor.column;
    next = image + row * row_stride + (kInMemory ? column * column_stride : 0);
    next_row = row;
    arrived_row = row;
    height = height_;
    inside = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const bool has = column + c >= 0 && column + c < width;
      inside |= has ? 1u << c : 0u;
      if constexpr (!kInMemory) {
        offsets[c] = has ? (column + c) * static_cast<int>(tensor.column) : 0;
        masks[c] = has ? ~0u : 0u;
      }
    }
  }

  FUSEDSC_DEVICE void load(Row& to) {
    const bool has_row = next_row >= 0 && next_row < height;
    const T* row = has_row ? next : image;
    to.mask = has_row ? ~0u : 0u;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) to.columns[c] = gpu::load<kChannels>(row + offsets[c]);
    next += row_stride;
    ++next_row;
  }

  /// The next row, to where the block keeps a row of each of its threads: neighbours' vectors lie next to each other.
  FUSEDSC_DEVICE void start_copies(char* rows) {
    const bool has_row = next_row >= 0 && next_row < height;
    const T* from = next;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      start_copy<kVectorBytes>(place(rows, c), from, has_row && is_inside(c));
      from += column_stride;
    }
    next += row_stride;
    ++next_row;
  }

  /// A row whose copies have arrived.
  FUSEDSC_DEVICE void read_copies(char* rows, Row& to) {
    to.mask = arrived_row >= 0 && arrived_row < height ? ~0u : 0u;
    ++arrived_row;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) to.columns[c] = gpu::load<kChannels>(reinterpret_cast<const T*>(place(rows, c)));
  }

  FUSEDSC_DEVICE static char* place(char* rows, int c) {
    return rows + (c * kItemThreads + thread_index()) * kVectorBytes;
  }

  FUSEDSC_DEVICE bool is_inside(int c) const { return (inside >> c & 1u) != 0; }
  FUSEDSC_DEVICE bool has(const Row& row, int c) const { return row.mask != 0 && is_inside(c); }

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

/// An activation in a loop over rows: relu and relu6 straight on, with the same code; the others behind a branch.
template <class A>
struct RowActivation {
  static constexpr A kInfinity = std::numeric_limits<A>::infinity();

  Activation activation = Activation::identity;
  bool limits = false;
  A high = 0;

  FUSEDSC_DEVICE void set(Activation activation_) {
    activation = activation_;
    limits = activation == Activation::relu || activation == Activation::relu6;
    high = activation == Activation::relu6 ? A(6) : kInfinity;
  }

  template <int kCount>
  FUSEDSC_DEVICE void apply(A (&z)[kCount]) const {
    if (limits) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) z[i] = clamped(z[i], A(0), high);
    } else {
      activate(activation, z);
    }
  }

  /// g *= activation'(z)
  template <int kCount>
  FUSEDSC_DEVICE void apply_backward(const A (&z)[kCount], A (&g)[kCount]) const {
    if (limits) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) g[i] = z[i] > A(0) && z[i] < high ? g[i] : A(0);
    } else {
      activate_backward(activation, z, g);
    }
  }
};

/// activation(scale*x + shift)
template <class T, int kChannels, int kColumns, bool kFused, bool kInMemory_ = false>
struct ActivationSource {
  static constexpr bool kInMemory = kInMemory_;
  using A = Accumulator<T>;
  using Window = ColumnWindow<T, kChannels, kColumns, kInMemory>;
  using Row = typename Window::Row;
  static constexpr int kRowBytes = Window::kRowBytes;

  Window window;
  A scale[kChannels], shift[kChannels];
  RowActivation<A> activation;

  FUSEDSC_DEVICE void set_channel(const DevicePrologue& prologue, int channel) {
    if constexpr (kFused) {
      load_channels(prologue.scale, channel, A(1), scale, A());
      load_channels(prologue.shift, channel, A(0), shift, A());
      activation.set(prologue.activation);
    }
  }

  FUSEDSC_DEVICE void load(Row& to) { window.load(to); }
  FUSEDSC_DEVICE void start_copies(char* rows) { window.start_copies(rows); }
  FUSEDSC_DEVICE void read_copies(char* rows, Row& to) { window.read_copies(rows, to); }

  /// scale*x + shift
  FUSEDSC_DEVICE void affine(A (&x)[kColumns * kChannels]) const {
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) x[i] = x[i] * scale[i % kChannels] + shift[i % kChannels];
  }

  FUSEDSC_DEVICE void widen(const Row& row, A (&to)[kColumns * kChannels]) const {
    if constexpr (kFused) {
      Window::widen(row, to);
      affine(to);
      activation.apply(to);
      window.zero_outside(row, to);
    } else if constexpr (kInMemory) {
      Window::widen(row, to);
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
template <class T, int kChannels, int kColumns, bool kFused, bool kInMemory_ = false>
struct GradientSource {
  static constexpr bool kInMemory = kInMemory_;
  using A = Accumulator<T>;
  using Window = ColumnWindow<T, kChannels, kColumns, kInMemory>;
  struct Row {
    typename Window::Row grad, output;
  };
  static constexpr int kRowBytes = Window::kRowBytes * (kFused ? 2 : 1);

  Window grad, output;
  bool has_output = false;
  A grad_scale[kChannels], output_scale[kChannels], offset[kChannels];

  FUSEDSC_DEVICE void set_channel(const DeviceGradientPrologue& prologue, int channel) {
    if constexpr (kFused) {
      load_channels(prologue.grad_scale, channel, A(1), grad_scale, A());
      load_channels(prologue.output_scale, channel, A(0), output_scale, A());
      load_channels(prologue.offset, channel, A(0), offset, A());
      has_output = prologue.output.data != nullptr;
    }
  }

  FUSEDSC_DEVICE void aim(const ConstDeviceTensor& grad_y, const DeviceGradientPrologue& prologue, int image,
                          int channel, int row, int column, int height, int width) {
    grad.aim(grad_y, image, channel, row, column, height, width);
    if constexpr (kFused) {
      if (has_output) output.aim(prologue.output, image, channel, row, column, height, width);
    }
  }

  FUSEDSC_DEVICE void load(Row& to) {
    grad.load(to.grad);
    if constexpr (kFused) {
      if (has_output) output.load(to.output);
    }
  }
  FUSEDSC_DEVICE void start_copies(char* rows) {
    grad.start_copies(rows);
    if constexpr (kFused) {
      if (has_output) output.start_copies(rows + kItemThreads * Window::kRowBytes);
    }
  }
  FUSEDSC_DEVICE void read_copies(char* rows, Row& to) {
    grad.read_copies(rows, to.grad);
    if constexpr (kFused) {
      if (has_output) output.read_copies(rows + kItemThreads * Window::kRowBytes, to.output);
    }
  }

  FUSEDSC_DEVICE void widen(const Row& row, A (&to)[kColumns * kChannels]) const {
    if constexpr (kInMemory) Window::widen(row.grad, to);
    else grad.widen_inside(row.grad, to);
    if constexpr (kFused) {
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
