/// The CPU's entry in the depthwise backward implementation list for contiguous tensors.
#pragma once

#include "fusedsc/backward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseBackwardArguments> depthwise_backward_planes_cpu();

}  // namespace fusedsc
