/// The GPU's entries in the depthwise forward implementation list.
#pragma once

#include "fusedsc/forward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseArguments> depthwise_gpu();

/// On Hopper GPUs. It has an entry where FUSEDSC_HOPPER is defined.
Implementation<DepthwiseArguments> depthwise_hopper();

}  // namespace fusedsc
