/// From a pass over maps to a launch: a pure function of the tensor, the kernel's tile and the size of the GPU.
#pragma once

#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/fused/squeeze_excite/squeeze_excite_kernel.h"

namespace fusedsc::gpu {

/// `x` has elements; `blocks`: as many as run at the same time. `split_cost`: of maps that are split over blocks, in
/// items that a thread could have worked off meanwhile.
MapsWork plan_maps(const ConstTensorView& x, const DepthwiseTile& tile, int blocks, int split_cost);

}  // namespace fusedsc::gpu
