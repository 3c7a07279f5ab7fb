/// Where a launch finds an operator's arguments.
#pragma once

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

namespace fusedsc::gpu {

/// Sets all that is not about tiles.
inline void aim(PointwiseParameters& p, const PointwiseArguments& a, bool channels_inner, void* partials) {
  p.product.activations = activation_matrix(a.x, a.groups, channels_inner);
  p.product.weight = weight_matrix(a.weight, a.groups);
  p.product.prologue = {a.prologue.scale.data, a.prologue.shift.data, nullptr, a.prologue.activation, {}};
  p.residual = activation_matrix(a.epilogue.residual, a.groups, channels_inner);
  p.y = output_matrix(a.y, a.groups, channels_inner);
  p.bias = a.bias.data;
  p.epilogue = {a.epilogue.scale.data, a.epilogue.shift.data, a.epilogue.activation};
  p.partials = partials;
}

}  // namespace fusedsc::gpu
