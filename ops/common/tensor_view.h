/// Views of caller-owned memory. Shapes are N, C, H, W whatever the memory format; the strides say the rest.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>

#include "fusedsc/common/data_type.h"

namespace fusedsc {

using Sizes = std::array<std::int64_t, 4>;  ///< N, C, H, W (or C_out, C_in/groups, Kh, Kw for a weight)

/// Where memory lies, and so who computes with it. A program has one kind of GPU.
enum class Device { cpu, gpu };

/// A four-dimensional array of `dtype`; strides are in elements and may be anything that addresses each element once.
/// A default-constructed view (data == nullptr) means "not given" or "not wanted".
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DataType dtype = DataType::float32;
  Sizes sizes{};
  Sizes strides{};
  Device device = Device::cpu;

  BasicTensorView() = default;
  BasicTensorView(Pointer data_, DataType dtype_, const Sizes& sizes_, const Sizes& strides_,
                  Device device_ = Device::cpu)
      : data(data_), dtype(dtype_), sizes(sizes_), strides(strides_), device(device_) {}
  /// A read-only view of a writable one.
  template <class Other>
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor): like T* to const T*
      : data(other.data), dtype(other.dtype), sizes(other.sizes), strides(other.strides), device(other.device) {}

  explicit operator bool() const { return data != nullptr; }
  std::int64_t elements() const { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

/// One value per channel, contiguous. Biases have the tensors' dtype; everything else has accumulation_type(dtype).
template <class Pointer>
struct BasicChannelVector {
  Pointer data = nullptr;
  DataType dtype = DataType::float32;
  std::int64_t size = 0;
  Device device = Device::cpu;

  BasicChannelVector() = default;
  BasicChannelVector(Pointer data_, DataType dtype_, std::int64_t size_, Device device_ = Device::cpu)
      : data(data_), dtype(dtype_), size(size_), device(device_) {}
  template <class Other>
  BasicChannelVector(const BasicChannelVector<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data), dtype(other.dtype), size(other.size), device(other.device) {}

  explicit operator bool() const { return data != nullptr; }
};

using ChannelVector = BasicChannelVector<void*>;
using ConstChannelVector = BasicChannelVector<const void*>;

enum class Layout { channels_last, contiguous, strided };

/// Strides of a dense tensor of these sizes: `contiguous` is NCHW in memory, `channels_last` is NHWC.
Sizes dense_strides(const Sizes& sizes, Layout layout);

/// The memory format that kernels may assume. Channel stride 1 makes `channels_last` (rows and images may lie apart);
/// column stride 1 makes `contiguous`; a tensor that is both (one channel, or 1x1 maps) counts as channels_last.
Layout layout_of(const Sizes& sizes, const Sizes& strides);

/// Sizes or strides in a message, as "[2, 32, 56, 56]": turned into text only where they are streamed, so that a check
/// that passes costs nothing.
struct Printed {
  const Sizes& sizes;
};
inline Printed printed(const Sizes& sizes) { return {sizes}; }
std::ostream& operator<<(std::ostream& out, const Printed& printed);

/// Whether some byte belongs to both (judged by the ranges of addresses they span).
bool overlap(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace fusedsc
