/// What the pointwise kernels for few outputs share. With so few, a product is a sum over channels that every element
/// of x enters once: it is bound by reading x, for which products of matrices have nothing to offer.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/forward/depthwise/rows/depthwise_source.h"

namespace fusedsc::gpu {

inline constexpr int kSkinnyThreads = 256;
inline constexpr int kMostSkinnyOutputs = 4;

/// A tensor whose positions follow each other at equal distances within an image.
template <class Void>
struct BasicSkinnyTensor {
  Void* data = nullptr;
  std::int64_t image = 0, channel = 0, position = 0;  ///< strides, in elements

  BasicSkinnyTensor() = default;
  template <class Pointer>
  explicit BasicSkinnyTensor(const BasicTensorView<Pointer>& view)
      : data(view.data),
        image(view.strides[0]),
        channel(view.strides[1]),
        position(view.sizes[3] > 1 ? view.strides[3] : view.strides[2]) {}

  template <class T>
  FUSEDSC_DEVICE auto* at(int n, int c, int p) const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data) + (n * image + c * channel + p * position);
  }
};
using SkinnyTensor = BasicSkinnyTensor<const void>;
using SkinnyOutput = BasicSkinnyTensor<void>;

/// Positions of all images, in vectors of those side by side.
struct SkinnyPositions {
  int vectors = 0, image_vectors = 1;
  Divisor by_image_vectors;

  struct Place {
    int image, vector;
  };
  FUSEDSC_DEVICE Place place(int vector) const {
    std::uint32_t rest = static_cast<std::uint32_t>(vector);
    const int image = static_cast<int>(by_image_vectors.divide(rest));
    return {image, static_cast<int>(rest)};
  }
};

}  // namespace fusedsc::gpu
