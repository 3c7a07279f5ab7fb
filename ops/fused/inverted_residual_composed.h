/// The inverted residual as a chain of the plain operators, BatchNorm in their seams. Knows nothing of the device.
#pragma once

#include "fusedsc/fused/inverted_residual.h"

namespace fusedsc {

Implementation<InvertedResidualArguments> inverted_residual_composed();
Implementation<InvertedResidualBackwardArguments> inverted_residual_backward_composed();

}  // namespace fusedsc
