/// Geometries of sliding-channel convolutions.
#pragma once

#include <ostream>
#include <vector>

#include "fusedsc/backward/sliding_channel.h"
#include "ops/cases.h"
#include "ops/tf32_factors.h"
#include "ops/verify.h"
#include "reference/convolution.h"

namespace fusedsc::reference {

struct SlidingChannelGeometry {
  static constexpr Operator<SlidingChannelArguments> kForward{sliding_channel_conv2d,
                                                              sliding_channel_conv2d_workspace_bytes};
  static constexpr Operator<SlidingChannelBackwardArguments> kBackward{sliding_channel_conv2d_backward,
                                                                       sliding_channel_conv2d_backward_workspace_bytes};
  static constexpr bool kYMayBeNull = false;

  Sizes x{};
  std::int64_t outputs = 1;
  std::int64_t groups = 2;
  double overlap = 0.5;
  bool tf32 = false;

  Sizes weight_sizes() const { return {outputs, x[1] / groups, 1, 1}; }
  Sizes y_sizes() const { return {x[0], outputs, x[2], x[3]}; }
  FirstChannels first() const { return channel_map(x[1], outputs, groups, overlap).first; }
  template <class Arguments>
  void set(Arguments& arguments) const {
    arguments.groups = groups;
    arguments.overlap = overlap;
    arguments.allow_tf32 = tf32;
  }

  Array forward(const Precision& precision, const Array& input, const Array& weight, const Vector& bias) const {
    return channel_windows(Tf32{tf32}.sums(precision), Tf32{tf32}.factor(input), Tf32{tf32}.factor(weight), bias,
                           first());
  }
  Array input_gradient(const Precision& precision, const Array& grad_y, const Array& weight) const {
    return channel_windows_input_gradient(Tf32{tf32}.sums(precision), Tf32{tf32}.factor(grad_y),
                                          Tf32{tf32}.factor(weight), x, first());
  }
  Array weight_gradient(const Precision& precision, const Array& grad_y, const Array& input) const {
    return channel_windows_weight_gradient(Tf32{tf32}.sums(precision), Tf32{tf32}.factor(grad_y),
                                           Tf32{tf32}.factor(input), weight_sizes(), first());
  }
};

inline std::ostream& operator<<(std::ostream& out, const SlidingChannelGeometry& geometry) {
  return out << "x " << printed(geometry.x) << ", M " << geometry.outputs << ", groups " << geometry.groups
             << ", overlap " << geometry.overlap << (geometry.tf32 ? ", TF32" : "");
}

/// Windows that wrap around, as many filters as channels or not, and what is awkward about either.
inline std::vector<SlidingChannelGeometry> sliding_channel_edges() {
  std::vector<SlidingChannelGeometry> edges;
  for (const std::int64_t groups : {1, 2, 3, 4, 8}) {
    for (const double overlap : {0.0, 0.25, 0.33, 0.5, 0.75, 0.99}) {
      for (const std::int64_t channels : {8, 32, 37}) {
        // Below, at and above a cycle; a multiple of it and not.
        for (const std::int64_t outputs : {1, 5, 24, 64}) {
          edges.push_back({{1, channels, 3, 7}, outputs, groups, overlap});
        }
      }
    }
  }
  for (std::int64_t width = 1; width <= 17; ++width) edges.push_back({{1, 17, 1, width}, 19, 4, 0.5});
  edges.insert(edges.end(), {
                                {{2, 64, 14, 14}, 160, 2, 0.25},
                                {{2, 160, 7, 7}, 24, 8, 0.5},
                                {{1, 300, 3, 5}, 320, 3, 0.5},  // more of everything than a block holds
                                {{1, 8, 56, 56}, 10, 2, 0.5},   // more positions than a tile holds
                                {{40, 32, 2, 2}, 64, 4, 0.5},   // many images of few positions
                                {{70, 16, 1, 1}, 24, 2, 0.5},   // of one position
                                {{2, 16, 1, 40}, 16, 2, 0.75},
                                {{2, 16, 40, 1}, 16, 2, 0.75},
                                {{3, 24, 9, 16}, 48, 2, 0.5},
                                {{1, 1, 1, 1}, 1, 1, 0.5},
                                {{1, 3, 4, 5}, 7, 3, 0.9},      // windows of one channel
                                {{1, 100, 5, 8}, 100, 3, 0.5},  // each filter a window of its own
                            });
  return edges;
}

inline SlidingChannelGeometry random_sliding_channel(Random& random) {
  constexpr std::int64_t kBatches[] = {1, 1, 2, 5}, kGroups[] = {1, 2, 2, 3, 4, 8};
  constexpr double kOverlaps[] = {0, 0.1, 0.25, 0.33, 0.5, 0.75, 0.9};
  const std::int64_t groups = one_of(random, kGroups), channels = between(random, groups, 100);
  return {{one_of(random, kBatches), channels, between(random, 1, 9), between(random, 1, 20)},
          between(random, 1, 64),
          groups,
          one_of(random, kOverlaps)};
}

}  // namespace fusedsc::reference
