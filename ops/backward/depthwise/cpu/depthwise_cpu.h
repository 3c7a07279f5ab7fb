/// The CPU's entry in the depthwise backward implementation list.
#pragma once

#include "fusedsc/backward/depthwise.h"

namespace fusedsc {

Implementation<DepthwiseBackwardArguments> depthwise_backward_cpu();

}  // namespace fusedsc
