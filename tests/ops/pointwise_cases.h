/// Geometries of pointwise convolutions.
#pragma once

#include <ostream>
#include <vector>

#include "fusedsc/backward/pointwise.h"
#include "ops/cases.h"
#include "ops/tf32_factors.h"
#include "ops/verify.h"
#include "reference/convolution.h"

namespace fusedsc::reference {

struct PointwiseGeometry {
  static constexpr Operator<PointwiseArguments> kForward{pointwise_conv2d, pointwise_conv2d_workspace_bytes};
  static constexpr Operator<PointwiseBackwardArguments> kBackward{pointwise_conv2d_backward,
                                                                  pointwise_conv2d_backward_workspace_bytes};
  static constexpr bool kYMayBeNull = false;

  Sizes x{};
  std::int64_t outputs = 1;
  std::int64_t groups = 1;
  bool tf32 = false;

  Sizes weight_sizes() const { return {outputs, x[1] / groups, 1, 1}; }
  Sizes y_sizes() const { return {x[0], outputs, x[2], x[3]}; }
  template <class Arguments>
  void set(Arguments& arguments) const {
    arguments.groups = groups;
    arguments.allow_tf32 = tf32;
  }

  Array forward(const Precision& precision, const Array& input, const Array& weight, const Vector& bias) const {
    return pointwise(Tf32{tf32}.sums(precision), Tf32{tf32}.factor(input), Tf32{tf32}.factor(weight), bias, groups);
  }
  Array input_gradient(const Precision& precision, const Array& grad_y, const Array& weight) const {
    return pointwise_input_gradient(Tf32{tf32}.sums(precision), Tf32{tf32}.factor(grad_y), Tf32{tf32}.factor(weight), x,
                                    groups);
  }
  Array weight_gradient(const Precision& precision, const Array& grad_y, const Array& input) const {
    return pointwise_weight_gradient(Tf32{tf32}.sums(precision), Tf32{tf32}.factor(grad_y), Tf32{tf32}.factor(input),
                                     weight_sizes(), groups);
  }
};

inline std::ostream& operator<<(std::ostream& out, const PointwiseGeometry& geometry) {
  return out << "x " << printed(geometry.x) << ", M " << geometry.outputs << ", groups " << geometry.groups
             << (geometry.tf32 ? ", TF32" : "");
}

/// One thing at a time at and next to the sizes of the kernels' blocks.
inline std::vector<PointwiseGeometry> pointwise_edges() {
  std::vector<PointwiseGeometry> edges;
  for (std::int64_t width = 1; width <= 17; ++width) edges.push_back({{1, 17, 1, width}, 19});
  for (const std::int64_t width : {28, 33}) edges.push_back({{1, 24, 5, width}, 24});
  for (const std::int64_t channels : {1, 2, 3, 8, 16, 17, 24, 32, 35, 64, 100}) {
    for (const std::int64_t outputs : {1, 10, 24, 40}) edges.push_back({{1, channels, 5, 7}, outputs});
  }
  edges.insert(
      edges.end(),
      {
          {{2, 24, 14, 14}, 160},  {{2, 160, 7, 7}, 24},   {{1, 35, 7, 7}, 160},
          {{1, 300, 3, 5}, 320},                          // more of everything than a block holds
          {{1, 336, 3, 5}, 320},                          // its weight is read in place
          {{1, 333, 3, 5}, 300},                          // lanes share the channels of the wider tensor
          {{1, 7, 56, 56}, 10},                           // more positions than a tile holds
          {{5, 16, 1, 1}, 24},                            // one position per image
          {{5, 33, 2, 2}, 17},     {{70, 20, 2, 2}, 17},  // many images per tile
          {{2, 16, 1, 40}, 16},    {{2, 16, 40, 1}, 16},   {{1, 1, 1, 1}, 1},
          {{2, 24, 5, 7}, 12, 2},  // groups: of several channels, odd ones,
          {{1, 27, 5, 7}, 15, 3},  {{1, 64, 4, 9}, 32, 4}, {{1, 12, 5, 7}, 12, 12},  // of one channel in and out,
          {{1, 12, 5, 7}, 24, 12},                                                   // of one channel in,
          {{1, 24, 5, 7}, 12, 12},                                                   // of one channel out
      });
  return edges;
}

inline PointwiseGeometry random_pointwise(Random& random) {
  constexpr std::int64_t kBatches[] = {1, 1, 2, 5}, kGroups[] = {1, 1, 1, 2, 3, 8};
  const std::int64_t groups = one_of(random, kGroups);
  const std::int64_t channels = groups * between(random, 1, 100 / groups);
  const std::int64_t outputs = groups * between(random, 1, 64 / groups);
  return {{one_of(random, kBatches), channels, between(random, 1, 9), between(random, 1, 20)}, outputs, groups};
}

}  // namespace fusedsc::reference
