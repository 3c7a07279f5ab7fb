/// The GPU's entries in the pointwise forward implementation list.
#pragma once

#include "fusedsc/forward/pointwise.h"

namespace fusedsc {

Implementation<PointwiseArguments> pointwise_gpu();
/// To one output, whatever the GPU.
Implementation<PointwiseArguments> pointwise_few();
/// By the copy engine and the warp-group products of Hopper GPUs (FUSEDSC_HOPPER).
Implementation<PointwiseArguments> pointwise_hopper();
/// Likewise, of contiguous tensors.
Implementation<PointwiseArguments> pointwise_hopper_planes();

}  // namespace fusedsc
