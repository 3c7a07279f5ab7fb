/// The inverted residual in eval mode where nothing is kept for backward: its entry in the implementation list.
#pragma once

#include "fusedsc/fused/inverted_residual.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<InvertedResidualArguments> inverted_residual_inference();

}  // namespace fusedsc
