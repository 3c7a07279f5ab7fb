/// Where a launch finds an operator's arguments.
#pragma once

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise/rows/depthwise_kernel.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"

namespace fusedsc::gpu {

/// What the items of a launch are strips of. `overlap`: see DepthwiseGrid.
inline DepthwiseGrid grid_of(const DepthwiseArguments& a, int overlap) {
  return {a.y.sizes[0],
          a.y.sizes[1],
          a.y.sizes[2],
          a.y.sizes[3],
          static_cast<std::int64_t>(size_of(a.x.dtype)),
          a.x.strides[1] < a.x.strides[3],
          overlap};
}

inline DepthwiseParameters parameters_of(const DepthwiseArguments& a, const ItemWork& work, bool join_columns,
                                         void* partials) {
  DepthwiseParameters p;
  p.x = a.x;
  p.weight = a.weight;
  p.bias = a.bias.data;
  p.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
  p.epilogue = {a.epilogue.scale.data, a.epilogue.shift.data, a.epilogue.activation};
  p.residual = a.epilogue.residual;
  p.y = a.y;
  p.partials = partials;
  p.shape = depthwise_shape(a.x.sizes, a.y.sizes, a.window);
  p.work = work;
  p.join_columns = join_columns;
  return p;
}

}  // namespace fusedsc::gpu
