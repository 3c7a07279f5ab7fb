/// Convolutions that a backward pass computes again, because its forward pass did not keep their results.
#pragma once

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"

namespace fusedsc {

/// With the kernel and config of the forward pass, whose arguments were `first`: so the result has the same bits.
/// Of `first` no memory is read or written; it may have statistics, which are not computed again.
Plan<DepthwiseArguments> plan_recomputed(const DepthwiseArguments& arguments, const DepthwiseArguments& first,
                                         int threads);
Plan<PointwiseArguments> plan_recomputed(const PointwiseArguments& arguments, const PointwiseArguments& first,
                                         int threads);

}  // namespace fusedsc
