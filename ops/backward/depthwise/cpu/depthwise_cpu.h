/// The CPU's entry among the kernels of the gradients of depthwise convolution that runs everything.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Any tensor: channels-innermost tiles in the first-level cache. Channels of a block, rows of the input that 3x3
/// kernels compute together, pieces of work.
tuning::Kernel<DepthwiseBackwardArguments> depthwise_backward_cpu();
/// What it is taken with.
tuning::Config depthwise_backward_cpu_prior(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc
