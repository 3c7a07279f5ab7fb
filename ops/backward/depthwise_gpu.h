/// The GPU's entries in the depthwise backward implementation list.
#pragma once

#include "fusedsc/backward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseBackwardArguments> depthwise_backward_gpu();

/// On Hopper GPUs: both gradients by one kernel. It has an entry where FUSEDSC_HOPPER is defined.
Implementation<DepthwiseBackwardArguments> depthwise_backward_hopper();

}  // namespace fusedsc
