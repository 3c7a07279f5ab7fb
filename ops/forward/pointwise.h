/// Pointwise (1x1) convolution with groups, forward.
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// y = epilogue(pointwise(prologue(x), weight) + bias).
struct PointwiseArguments {
  ConstTensorView x;        ///< [N, C, H, W]
  ConstTensorView weight;   ///< [M, C/groups, 1, 1], dtype of x
  ConstChannelVector bias;  ///< [M], dtype of x; or empty
  std::int64_t groups = 1;  ///< divides C and M
  Prologue prologue;
  /// On a GPU: the launch before this one makes vectors of the prologue, and none of what else is read.
  bool prologue_is_new = false;
  Epilogue epilogue;
  Statistics statistics;  ///< not together with `epilogue`
  TensorView y;           ///< [N, M, H, W], dtype of x
  /// Whether factors of float32 may be rounded, or cut off, to 10 fractional bits (TensorFloat-32), where a GPU is
  /// faster with them.
  bool allow_tf32 = false;
  /// Not empty: that of a sliding-channel convolution, with weight [M, width, 1, 1], which runs as this one where an
  /// implementation can (sliding_channel_hopper.cpp).
  SlidingChannels windows;
};

/// Runs the first implementation that can. Throws InvalidArgument or Unsupported.
void pointwise_conv2d(const PointwiseArguments& arguments, const Execution& execution);
std::size_t pointwise_conv2d_workspace_bytes(const PointwiseArguments& arguments, int threads);
Plan<PointwiseArguments> plan_pointwise_conv2d(const PointwiseArguments& arguments, int threads);
std::vector<Candidate> explain_pointwise_conv2d(const PointwiseArguments& arguments, int threads = 1);

/// The sizes of y: throws InvalidArgument where x, weight and groups do not fit together.
Sizes pointwise_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups);

}  // namespace fusedsc
