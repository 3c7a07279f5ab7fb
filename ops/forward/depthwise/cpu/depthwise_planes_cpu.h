/// The CPU's entry in the depthwise forward implementation list for contiguous tensors.
#pragma once

#include "fusedsc/forward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseArguments> depthwise_planes_cpu();

}  // namespace fusedsc
