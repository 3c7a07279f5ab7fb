/// Tensors as kernels see them: an address and 64-bit strides. Null data: not given.
#pragma once

#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu {

template <class Void>
struct BasicDeviceTensor {
  Void* data = nullptr;
  std::int64_t image = 0, channel = 0, row = 0, column = 0;  ///< strides, in elements

  BasicDeviceTensor() = default;
  template <class Pointer>
  BasicDeviceTensor(const BasicTensorView<Pointer>& view)  // NOLINT(google-explicit-constructor): for initialisers
      : data(view.data),
        image(view.strides[0]),
        channel(view.strides[1]),
        row(view.strides[2]),
        column(view.strides[3]) {}

  FUSEDSC_DEVICE std::int64_t offset(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return n * image + c * channel + h * row + w * column;
  }
};

using DeviceTensor = BasicDeviceTensor<void>;
using ConstDeviceTensor = BasicDeviceTensor<const void>;

template <class T>
FUSEDSC_DEVICE const T* elements_of(const ConstDeviceTensor& tensor) {
  return static_cast<const T*>(tensor.data);
}
template <class T>
FUSEDSC_DEVICE T* elements_of(const DeviceTensor& tensor) {
  return static_cast<T*>(tensor.data);
}

/// to = kCount values of a vector from `channel` on, or `otherwise` where there is none.
template <int kCount, class T, class A>
FUSEDSC_DEVICE void load_channels(const void* vector, int channel, A otherwise, A (&to)[kCount], T) {
#pragma unroll
  for (int v = 0; v < kCount; ++v) {
    to[v] = vector != nullptr ? static_cast<A>(to_accumulator(static_cast<const T*>(vector)[channel + v])) : otherwise;
  }
}

}  // namespace fusedsc::gpu
