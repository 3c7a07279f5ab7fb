/// Depthwise convolution, forward: each output channel sees one input channel.
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// y = epilogue(depthwise(prologue(x), weight) + bias).
struct DepthwiseArguments {
  ConstTensorView x;        ///< [N, C, H, W]
  ConstTensorView weight;   ///< [C*m, 1, Kh, Kw], dtype of x; m is the channel multiplier
  ConstChannelVector bias;  ///< [C*m], dtype of x; or empty
  Window window;            ///< kernel must equal weight's last two sizes
  Prologue prologue;
  Epilogue epilogue;
  Statistics statistics;  ///< not together with `epilogue`
  TensorView y;           ///< [N, C*m, OH, OW], dtype of x; data may be null when only statistics are wanted
};

/// Runs the first implementation that can. Throws InvalidArgument or Unsupported.
void depthwise_conv2d(const DepthwiseArguments& arguments, const Execution& execution);
std::size_t depthwise_conv2d_workspace_bytes(const DepthwiseArguments& arguments, int threads);
Plan<DepthwiseArguments> plan_depthwise_conv2d(const DepthwiseArguments& arguments, int threads);
std::vector<Candidate> explain_depthwise_conv2d(const DepthwiseArguments& arguments, int threads = 1);

/// The sizes of y: throws InvalidArgument where x, weight and window do not fit together.
Sizes depthwise_output_sizes(const Sizes& x, const Sizes& weight, const Window& window);

}  // namespace fusedsc
