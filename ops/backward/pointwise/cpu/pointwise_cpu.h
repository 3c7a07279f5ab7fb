/// The CPU's entry in the pointwise backward implementation list.
#pragma once

#include "fusedsc/backward/pointwise.h"

namespace fusedsc {

Implementation<PointwiseBackwardArguments> pointwise_backward_cpu();

}  // namespace fusedsc
