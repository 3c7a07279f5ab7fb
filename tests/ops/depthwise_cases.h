/// Geometries of depthwise convolutions.
#pragma once

#include <ostream>
#include <vector>

#include "fusedsc/backward/depthwise.h"
#include "ops/cases.h"
#include "ops/verify.h"
#include "reference/convolution.h"

namespace fusedsc::reference {

struct DepthwiseGeometry {
  static constexpr Operator<DepthwiseArguments> kForward{depthwise_conv2d, depthwise_conv2d_workspace_bytes};
  static constexpr Operator<DepthwiseBackwardArguments> kBackward{depthwise_conv2d_backward,
                                                                  depthwise_conv2d_backward_workspace_bytes};
  static constexpr bool kYMayBeNull = true;

  Sizes x{};
  Window window{};
  std::int64_t multiplier = 1;

  Sizes weight_sizes() const { return {x[1] * multiplier, 1, window.kernel[0], window.kernel[1]}; }
  Sizes y_sizes() const { return {x[0], x[1] * multiplier, window.output_height(x[2]), window.output_width(x[3])}; }
  template <class Arguments>
  void set(Arguments& arguments) const {
    arguments.window = window;
  }

  Array forward(const Precision& precision, const Array& input, const Array& weight, const Vector& bias) const {
    return depthwise(precision, input, weight, bias, window);
  }
  Array input_gradient(const Precision& precision, const Array& grad_y, const Array& weight) const {
    return depthwise_input_gradient(precision, grad_y, weight, window, x);
  }
  Array weight_gradient(const Precision& precision, const Array& grad_y, const Array& input) const {
    return depthwise_weight_gradient(precision, grad_y, input, window, weight_sizes());
  }
};

inline std::ostream& operator<<(std::ostream& out, const Window& window) {
  const Padding& padding = window.padding;
  return out << "kernel " << window.kernel[0] << 'x' << window.kernel[1] << ", stride " << window.stride[0] << 'x'
             << window.stride[1] << ", dilation " << window.dilation[0] << 'x' << window.dilation[1]
             << ", padding (left " << padding.left << ", right " << padding.right << ", top " << padding.top
             << ", bottom " << padding.bottom << ')';
}

inline std::ostream& operator<<(std::ostream& out, const DepthwiseGeometry& geometry) {
  return out << "x " << printed(geometry.x) << ", multiplier " << geometry.multiplier << ", " << geometry.window;
}

/// A window of side `kernel` that keeps the size at stride 1, or halves it at stride 2.
inline Window centered(std::int64_t kernel, std::int64_t stride = 1) {
  const std::int64_t before = kernel / 2, after = (kernel - 1) / 2;
  return {{kernel, kernel}, {stride, stride}, {1, 1}, {before, after, before, after}};
}

/// One thing at a time at and next to the sizes of the kernels' blocks, and what is odd in other ways.
inline std::vector<DepthwiseGeometry> depthwise_edges() {
  std::vector<DepthwiseGeometry> edges;
  for (const std::int64_t stride : {1, 2}) {
    for (std::int64_t width = 1; width <= 17; ++width) edges.push_back({{1, 17, 5, width}, centered(3, stride)});
    for (const std::int64_t width : {28, 33}) edges.push_back({{1, 24, 6, width}, centered(3, stride)});
    for (std::int64_t height = 1; height <= 4; ++height) edges.push_back({{2, 8, height, 15}, centered(3, stride)});
    for (const std::int64_t channels : {1, 3, 8, 16, 24, 32, 35, 64, 100}) {
      edges.push_back({{2, channels, 7, 9}, centered(3, stride)});
    }
    for (const std::int64_t kernel : {1, 2, 4, 5, 7}) edges.push_back({{1, 19, 9, 16}, centered(kernel, stride)});
    for (const std::int64_t multiplier : {2, 3}) edges.push_back({{1, 7, 6, 11}, centered(3, stride), multiplier});
    edges.push_back({{5, 16, 4, 4}, centered(3, stride)});
  }
  edges.insert(edges.end(),
               {
                   {{1, 300, 12, 112}, centered(3)},  // more channels than a block of rows holds
                   {{1, 70, 40, 9}, centered(5), 2},  // more rows than a chunk, multiplied
                   {{2, 960, 7, 7}, centered(3)},
                   {{20, 3, 6, 12}, centered(3)},   // more images than channels
                   {{2, 40, 12, 12}, centered(3)},  // many small planes
                   {{1, 2, 130, 40}, centered(3)},  // more rows of a plane than are loaded together
                   {{1, 2, 131, 40}, centered(3, 2)},
                   {{1, 2, 110, 40}, centered(3), 2},  // likewise, multiplied
                   {{1, 2, 70, 70}, centered(7, 2)},
                   {{2, 1, 9, 31}, centered(3)},                            // one channel
                   {{1, 9, 6, 7}, {{3, 5}, {1, 1}, {1, 1}, {2, 2, 1, 1}}},  // not square
                   {{1, 9, 8, 9}, {{1, 7}, {2, 1}, {1, 1}, {3, 3, 0, 0}}},
                   {{1, 20, 8, 9}, {{4, 2}, {1, 3}, {1, 1}, {0, 1, 2, 0}}},
                   {{2, 12, 4, 20}, {{3, 5}, {1, 10}, {1, 1}, {}}, 2},  // strides beyond the kernel
                   {{1, 8, 9, 9}, {{2, 2}, {3, 3}, {1, 1}, {}}},
                   {{1, 18, 11, 13}, {{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}},  // dilated
                   {{1, 18, 11, 13}, {{3, 3}, {2, 2}, {3, 2}, {2, 2, 3, 3}}},
                   {{1, 5, 19, 31}, {{3, 4}, {3, 2}, {2, 3}, {3, 2, 4, 1}}},
                   {{1, 5, 12, 23}, {{3, 3}, {1, 2}, {1, 1}, {0, 2, 1, 0}}},  // strides that differ
                   {{1, 5, 12, 23}, {{3, 3}, {2, 1}, {1, 1}, {2, 0, 0, 3}}},
                   {{1, 18, 7, 9}, {{3, 3}, {1, 1}, {1, 1}, {0, 2, 3, 1}}},   // padding of four sides
                   {{1, 18, 8, 10}, {{3, 3}, {2, 2}, {1, 1}, {0, 1, 0, 1}}},  // TensorFlow's "same" at stride 2
                   {{1, 18, 7, 9}, {{3, 3}, {2, 2}, {1, 1}, {5, 4, 3, 6}}},   // windows wholly in the padding
                   {{1, 18, 7, 9}, {{3, 3}, {1, 1}, {1, 1}, {}}},             // "valid"
                   {{1, 18, 3, 3}, {{3, 3}, {1, 1}, {1, 1}, {}}},             // one window
                   {{1, 18, 4, 4}, {{3, 3}, {2, 2}, {1, 1}, {}}},             // an edge that no window covers
                   {{1, 18, 1, 1}, {{7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}}},   // a kernel larger than the input
                   {{3, 6, 1, 1}, {{1, 1}, {1, 1}, {1, 1}, {}}},
               });
  return edges;
}

inline DepthwiseGeometry random_depthwise(Random& random) {
  const auto pair = [&](std::int64_t low, std::int64_t high) {
    return std::array<std::int64_t, 2>{between(random, low, high), between(random, low, high)};
  };
  constexpr std::int64_t kBatches[] = {1, 1, 2, 5}, kMultipliers[] = {1, 1, 1, 2, 3};
  DepthwiseGeometry geometry;
  Window& window = geometry.window;
  if (coin(random)) {
    window = centered(3, between(random, 1, 2));
  } else {
    window = {pair(1, 7), pair(1, 3), pair(1, 2), {}};
    const auto side = [&](int axis) { return between(random, 0, window.kernel[axis]); };
    window.padding = {side(1), side(1), side(0), side(0)};
  }
  const auto size = [&](int axis, std::int64_t high, std::int64_t padding) {
    const std::int64_t reach = window.dilation[axis] * (window.kernel[axis] - 1) + 1;
    return between(random, std::max<std::int64_t>(1, reach - padding), high);
  };
  geometry.multiplier = one_of(random, kMultipliers);
  geometry.x = {one_of(random, kBatches), between(random, 1, 40),
                size(0, 20, window.padding.top + window.padding.bottom),
                size(1, 33, window.padding.left + window.padding.right)};
  return geometry;
}

}  // namespace fusedsc::reference
