/// The CPU's entry among the kernels of the gradients of depthwise convolution, for contiguous tensors.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Contiguous tensors without a channel multiplier: rows of a plane along the vector. Rows of a plane, or planes
/// (channels), that are loaded at once; tasks; rows that are fetched ahead.
tuning::Kernel<DepthwiseBackwardArguments> depthwise_backward_planes_cpu();
/// What it is taken with.
tuning::Config depthwise_backward_planes_cpu_prior(const DepthwiseBackwardArguments& a);

}  // namespace fusedsc
