#include "fusedsc/fused/conv_patches.h"

#include <cmath>
#include <numbers>
#include <type_traits>
#include <vector>

#include "fusedsc/common/cpu/elements.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/fused/layout/conv_patches_gpu.h"

namespace fusedsc {
namespace {

/// body(image, row), each of them once.
template <class Body>
void for_rows(const Execution& execution, std::int64_t images, std::int64_t rows, const Body& body) {
  const std::int64_t lanes = std::min<std::int64_t>(execution.threads, images * rows);
  run_lanes(execution, lanes, [&](std::int64_t lane) {
    const Range own = part_of(images * rows, lanes, lane);
    for (std::int64_t i = own.begin; i < own.end; ++i) body(i / rows, i % rows);
  });
}

/// The elements of a patch in their order.
struct PatchElement {
  std::int64_t channel, row, column;
};
std::vector<PatchElement> patch_elements(std::int64_t channels, const Window& window, PatchOrder order) {
  std::vector<PatchElement> elements;
  const auto [rows, columns] = window.kernel;
  if (order == PatchOrder::channels_first) {
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t i = 0; i < rows * columns; ++i) elements.push_back({c, i / columns, i % columns});
    }
  } else {
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      for (std::int64_t c = 0; c < channels; ++c) elements.push_back({c, i / columns, i % columns});
    }
  }
  return elements;
}

/// The columns of the output from which column kw of the window lies inside of x.
Range columns_inside(const Window& window, std::int64_t kw, std::int64_t width, std::int64_t output_width) {
  const std::int64_t stride = window.stride[1], first = kw * window.dilation[1] - window.padding.left;
  const std::int64_t begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
  const std::int64_t end = width > first ? (width - first + stride - 1) / stride : 0;
  return {std::min(begin, output_width), std::clamp<std::int64_t>(end, std::min(begin, output_width), output_width)};
}

template <class T>
void gather(const GatherPatchesArguments& a, const Execution& execution) {
  const auto elements = patch_elements(a.x.sizes[1], a.window, a.order);
  const Sizes &from = a.x.strides, &to = a.patches.strides;
  const std::int64_t output_width = a.patches.sizes[3];
  for_rows(execution, a.patches.sizes[0], a.patches.sizes[2], [&](std::int64_t n, std::int64_t oh) {
    T* patches = static_cast<T*>(a.patches.data) + n * to[0] + oh * to[2];
    for (std::size_t k = 0; k < elements.size(); ++k, patches += to[1]) {
      const PatchElement& element = elements[k];
      const std::int64_t ih = oh * a.window.stride[0] + element.row * a.window.dilation[0] - a.window.padding.top;
      Range inside = columns_inside(a.window, element.column, a.x.sizes[3], output_width);
      if (ih < 0 || ih >= a.x.sizes[2]) inside = {0, 0};
      const std::int64_t iw = element.column * a.window.dilation[1] - a.window.padding.left;
      const T* row = static_cast<const T*>(a.x.data) + n * from[0] + element.channel * from[1] + ih * from[2];
      for (std::int64_t ow = 0; ow < inside.begin; ++ow) patches[ow * to[3]] = T();
      for (std::int64_t ow = inside.begin; ow < inside.end; ++ow) {
        patches[ow * to[3]] = row[(ow * a.window.stride[1] + iw) * from[3]];
      }
      for (std::int64_t ow = inside.end; ow < output_width; ++ow) patches[ow * to[3]] = T();
    }
  });
}

template <class T>
void scatter(const ScatterPatchesArguments& a, const Execution& execution) {
  const auto elements = patch_elements(a.x.sizes[1], a.window, a.order);
  const Sizes &from = a.patches.strides, &to = a.x.strides;
  const std::int64_t channels = a.x.sizes[1], width = a.x.sizes[3];
  for_rows(execution, a.x.sizes[0], a.x.sizes[2], [&](std::int64_t n, std::int64_t ih) {
    std::vector<Wide<T>> sums(static_cast<std::size_t>(channels * width));
    const T* patches = static_cast<const T*>(a.patches.data) + n * from[0];
    for (std::size_t k = 0; k < elements.size(); ++k, patches += from[1]) {
      const PatchElement& element = elements[k];
      const std::int64_t from_top = ih + a.window.padding.top - element.row * a.window.dilation[0];
      if (from_top < 0 || from_top % a.window.stride[0] != 0) continue;
      const std::int64_t oh = from_top / a.window.stride[0];
      if (oh >= a.patches.sizes[2]) continue;
      const Range inside = columns_inside(a.window, element.column, width, a.patches.sizes[3]);
      const std::int64_t iw = element.column * a.window.dilation[1] - a.window.padding.left;
      Wide<T>* row = sums.data() + element.channel * width;
      for (std::int64_t ow = inside.begin; ow < inside.end; ++ow) {
        row[ow * a.window.stride[1] + iw] += widened(patches[oh * from[2] + ow * from[3]]);
      }
    }
    for (std::int64_t c = 0; c < channels; ++c) {
      T* x = static_cast<T*>(a.x.data) + n * to[0] + c * to[1] + ih * to[2];
      for (std::int64_t w = 0; w < width; ++w) narrow(sums[static_cast<std::size_t>(c * width + w)], x[w * to[3]]);
    }
  });
}

template <class A>
A derivative(Activation activation, A z) {
  switch (activation) {
    case Activation::identity: return 1;
    case Activation::relu: return z > A(0) ? A(1) : A(0);
    case Activation::relu6: return z > A(0) && z < A(6) ? A(1) : A(0);
    case Activation::silu: {
      const A sigmoid = A(1) / (A(1) + std::exp(-z));
      return sigmoid * (A(1) + z * (A(1) - sigmoid));
    }
    case Activation::hardswish: return z <= A(-3) ? A(0) : z >= A(3) ? A(1) : z / A(3) + A(0.5);
    case Activation::gelu:
      return std::erfc(z * A(-0.5 * std::numbers::sqrt2)) / A(2) +
             z * (std::exp(z * z / A(-2)) * A(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2));
  }
  return 1;
}

/// Steps along a run of elements: numbers, or where they are known to be 1 a type that says so, for vector code.
using One = std::integral_constant<std::int64_t, 1>;

template <class T>
void gradient(const BatchNormGradientArguments& a, const Execution& execution) {
  using A = Wide<T>;
  const auto value = [](const ConstChannelVector& vector, std::int64_t c) {
    return static_cast<const A*>(vector.data)[c];
  };
  const bool along_channels = a.x.strides[1] == 1 && a.x.sizes[1] > 1;
  const int inner = along_channels ? 1 : 3, outer = along_channels ? 3 : 1;
  const bool dense = a.x.strides[inner] == 1 && a.grad_y.strides[inner] == 1 && a.out.strides[inner] == 1;
  const auto place = [inner, outer](const auto& view, std::int64_t n, std::int64_t h, std::int64_t i) {
    return n * view.strides[0] + h * view.strides[2] + i * view.strides[outer];
  };
  for_rows(execution, a.x.sizes[0], a.x.sizes[2], [&](std::int64_t n, std::int64_t h) {
    for (std::int64_t i = 0; i < a.x.sizes[outer]; ++i) {
      const T* x = static_cast<const T*>(a.x.data) + place(a.x, n, h, i);
      const T* grad_y = static_cast<const T*>(a.grad_y.data) + place(a.grad_y, n, h, i);
      T* out = static_cast<T*>(a.out.data) + place(a.out, n, h, i);
      const auto run = [&](auto activation, auto x_step, auto grad_y_step, auto out_step) {
        for (std::int64_t j = 0; j < a.x.sizes[inner]; ++j) {
          const std::int64_t c = along_channels ? j : i;
          const A raw = widened(x[j * x_step]);
          const A g =
              widened(grad_y[j * grad_y_step]) * derivative<A>(activation, raw * value(a.scale, c) + value(a.shift, c));
          const A from_raw = a.output_scale ? value(a.output_scale, c) * raw + value(a.offset, c) : A(0);
          narrow(value(a.grad_scale, c) * g + from_raw, out[j * out_step]);
        }
      };
      if (dense && a.activation == Activation::relu6) {
        run(std::integral_constant<Activation, Activation::relu6>(), One(), One(), One());
      } else if (dense && a.activation == Activation::relu) {
        run(std::integral_constant<Activation, Activation::relu>(), One(), One(), One());
      } else {
        run(a.activation, a.x.strides[inner], a.grad_y.strides[inner], a.out.strides[inner]);
      }
    }
  });
}

}  // namespace

void gather_patches(const GatherPatchesArguments& a, const Execution& execution) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::gather_patches(a, execution.stream);
#endif
  with_type(a.x.dtype, [&](auto element) { gather<decltype(element)>(a, execution); });
}

void scatter_patches(const ScatterPatchesArguments& a, const Execution& execution) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::scatter_patches(a, execution.stream);
#endif
  with_type(a.x.dtype, [&](auto element) { scatter<decltype(element)>(a, execution); });
}

void batch_norm_gradient(const BatchNormGradientArguments& a, const Execution& execution) {
#ifdef FUSEDSC_GPU
  if (a.x.device == Device::gpu) return gpu::batch_norm_gradient(a, execution.stream);
#endif
  with_type(a.x.dtype, [&](auto element) { gradient<decltype(element)>(a, execution); });
}

}  // namespace fusedsc
