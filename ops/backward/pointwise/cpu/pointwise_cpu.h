/// The CPU's entry among the kernels of the gradients of pointwise convolution.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Anything, on the CPU. Positions of a tile (rows, or columns of channel-major tiles), depth and vectors of products;
/// splits: 1 where there is one weight gradient, of which each thread has some channels; more where each has one of its
/// own; none: whichever reads less.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_cpu();
/// What it is taken with.
tuning::Config pointwise_backward_cpu_prior(const PointwiseBackwardArguments& a);

}  // namespace fusedsc
