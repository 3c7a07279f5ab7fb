/// The CPU's entry among the kernels of depthwise convolution, forward, that runs everything.
#pragma once

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Any tensor: channels-innermost tiles in the first-level cache. Channels of a block, pieces of work; of 3x3 kernels
/// rows and columns of a block of outputs, and rows that are fetched ahead.
tuning::Kernel<DepthwiseArguments> depthwise_cpu();
/// What it is taken with.
tuning::Config depthwise_cpu_prior(const DepthwiseArguments& a);

}  // namespace fusedsc
