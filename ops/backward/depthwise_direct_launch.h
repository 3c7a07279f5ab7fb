/// Depthwise convolution of small problems on GPUs: the input gradient at stride 2 (at stride 1 it is a forward pass),
/// and the weight gradient.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fusedsc/backward/depthwise.h"

namespace fusedsc::gpu {

/// Whether the problem is small, and there is a kernel for its input gradient.
bool suits_depthwise_direct_input(const DepthwiseBackwardArguments& a);

/// Nothing where it does not suit.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_direct_input(const DepthwiseBackwardArguments& a);

/// How the threads of a weight gradient share it out.
struct DirectWeightCut {
  int channels, rows;  ///< of outputs that a thread has at a time
  int lanes;           ///< threads with neighbouring channels
  int groups;          ///< of 32 threads of a block, that have the same channels
  int splits;          ///< blocks with the same channels; a second kernel adds up what more than one leaves
};

/// Empty, or why there is no kernel for the problem's weight gradient.
std::string why_no_direct_weight(const DepthwiseBackwardArguments& a);

/// All that there are kernels for; `a` must suit them.
std::vector<DirectWeightCut> direct_weight_cuts(const DepthwiseBackwardArguments& a);

/// By one of these.
Plan<DepthwiseBackwardArguments> plan_depthwise_direct_weight(const DepthwiseBackwardArguments& a,
                                                              const DirectWeightCut& cut);

/// Whether that, and the input gradient by threads of an output or a few, are faster than both gradients by one kernel
/// of Hopper GPUs.
bool suits_depthwise_direct_gradients(const DepthwiseBackwardArguments& a);

/// By the best of them where the problem is small; else nothing.
std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_direct_weight(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc::gpu
