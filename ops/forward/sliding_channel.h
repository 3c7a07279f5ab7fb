/// Sliding-channel convolution (SCC), forward: a pointwise convolution each of whose filters sees a window of channels
/// (Wang et al., DSXplore, section III).
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// y = epilogue(scc(prologue(x), weight) + bias), where
///   scc(a, weight)[m] = sum over k of weight[m][k] * a[(first(m) + k) mod C],
/// with the windows of SlidingChannels(C, M, groups, overlap).
struct SlidingChannelArguments {
  ConstTensorView x;        ///< [N, C, H, W]
  ConstTensorView weight;   ///< [M, C/groups rounded down, 1, 1], dtype of x
  ConstChannelVector bias;  ///< [M], dtype of x; or empty
  std::int64_t groups = 2;  ///< at most C
  double overlap = 0.5;     ///< of a window with the next filter's, in [0, 1)
  Prologue prologue;
  Epilogue epilogue;
  Statistics statistics;    ///< not together with `epilogue`
  TensorView y;             ///< [N, M, H, W], dtype of x
  bool allow_tf32 = false;  ///< as of a pointwise convolution
};

/// Runs the first implementation that can. Throws InvalidArgument or Unsupported.
void sliding_channel_conv2d(const SlidingChannelArguments& arguments, const Execution& execution);
std::size_t sliding_channel_conv2d_workspace_bytes(const SlidingChannelArguments& arguments, int threads);
Plan<SlidingChannelArguments> plan_sliding_channel_conv2d(const SlidingChannelArguments& arguments, int threads);
std::vector<Candidate> explain_sliding_channel_conv2d(const SlidingChannelArguments& arguments, int threads = 1);

/// The sizes of y: throws InvalidArgument where x, weight, groups and overlap do not fit together.
Sizes sliding_channel_output_sizes(const Sizes& x, const Sizes& weight, std::int64_t groups, double overlap);

/// The windows of a problem, forward or backward.
template <class Arguments>
SlidingChannels sliding_channels_of(const Arguments& arguments) {
  return {arguments.x.sizes[1], arguments.weight.sizes[0], arguments.groups, arguments.overlap};
}

}  // namespace fusedsc
