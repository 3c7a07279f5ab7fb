/// The CPU's entry in the pointwise forward implementation list.
#pragma once

#include "fusedsc/forward/pointwise.h"

namespace fusedsc {

Implementation<PointwiseArguments> pointwise_cpu();

}  // namespace fusedsc
