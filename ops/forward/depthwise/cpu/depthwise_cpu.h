/// The CPU's entry in the depthwise forward implementation list.
#pragma once

#include "fusedsc/forward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseArguments> depthwise_cpu();

}  // namespace fusedsc
