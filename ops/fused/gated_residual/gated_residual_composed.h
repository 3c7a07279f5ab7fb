/// The halves of a gated residual as chains of the plain operators. They know nothing of the device.
#pragma once

#include "fusedsc/fused/gated_residual.h"

namespace fusedsc {

Implementation<GatedResidualArguments> gated_residual_features_composed();
Implementation<GatedResidualArguments> gated_residual_projection_composed();
Implementation<GatedResidualBackwardArguments> gated_residual_projection_backward_composed();
Implementation<GatedResidualBackwardArguments> gated_residual_features_backward_composed();

}  // namespace fusedsc
