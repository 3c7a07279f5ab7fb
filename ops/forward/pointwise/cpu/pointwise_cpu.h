/// The CPU's entry among the kernels of pointwise convolution, forward.
#pragma once

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Anything, on the CPU. Positions of a tile (rows, or columns of channel-major tiles), depth and vectors of products.
tuning::Kernel<PointwiseArguments> pointwise_cpu();
/// What it is taken with.
tuning::Config pointwise_cpu_prior(const PointwiseArguments& a);

}  // namespace fusedsc
