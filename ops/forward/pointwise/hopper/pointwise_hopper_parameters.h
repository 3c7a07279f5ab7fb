/// What the launches of Hopper's pointwise convolution make of its arguments.
#pragma once

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {

/// What is fused.
inline void set_fusion(PointwiseCase& product, const PointwiseArguments& a) {
  product.prologue = static_cast<bool>(a.prologue);
  // An output that is only biased goes through the inference epilogue, with no more than a shift.
  product.kind = a.statistics                         ? EpilogueKind::statistics
                 : a.epilogue || a.bias || a.prologue ? EpilogueKind::inference
                                                      : EpilogueKind::plain;
  product.has_added = static_cast<bool>(a.epilogue.residual);
}

/// These, and tensors, for kernels of both layouts; partials: of the statistics.
inline void set_fusion(PointwiseParameters& p, const PointwiseArguments& a, float* partials) {
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  p.activation = a.prologue.activation;
  p.prologue_is_new = a.prologue_is_new;
  p.epilogue.bias = a.bias.data;
  p.epilogue.scale = static_cast<const float*>(a.epilogue.scale.data);
  p.epilogue.shift = static_cast<const float*>(a.epilogue.shift.data);
  p.epilogue.activation = a.epilogue.activation;
  p.epilogue.partials = partials;
  p.activations_rows = a.x.data;
  p.added_rows = a.epilogue.residual.data;
  p.output_rows = a.y.data;
}

}  // namespace fusedsc::gpu::hopper
