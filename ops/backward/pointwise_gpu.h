/// The GPU's entries in the pointwise backward implementation list.
#pragma once

#include "fusedsc/backward/pointwise.h"

namespace fusedsc {

Implementation<PointwiseBackwardArguments> pointwise_backward_gpu();
/// As pointwise_hopper().
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper();

}  // namespace fusedsc
