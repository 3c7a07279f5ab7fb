/// The CPU's entry among the kernels of depthwise convolution, forward, for contiguous tensors.
#pragma once

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Contiguous tensors: rows of a plane along the vector. Rows of a plane, or planes (channels), that are loaded at
/// once; tasks; rows that are fetched ahead.
tuning::Kernel<DepthwiseArguments> depthwise_planes_cpu();
/// What it is taken with.
tuning::Config depthwise_planes_cpu_prior(const DepthwiseArguments& a);

}  // namespace fusedsc
