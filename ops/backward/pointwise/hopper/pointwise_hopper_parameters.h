/// What the launches of Hopper's pointwise gradients make of their arguments.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {

/// What is fused with the input gradient: grad_y is what is multiplied.
inline void set_fusion(PointwiseCase& product, const PointwiseBackwardArguments& a) {
  product.prologue = static_cast<bool>(a.gradient_prologue);
  product.kind = a.prologue || a.gradient_prologue || a.grad_add ? EpilogueKind::gradient : EpilogueKind::plain;
  product.has_other = static_cast<bool>(a.gradient_prologue);
  product.has_x = static_cast<bool>(a.prologue);
  product.has_added = static_cast<bool>(a.grad_add);
}

/// Whether blocks of kernels without fusion can transpose the weight in shared memory
/// (pointwise_hopper_smem_transpose.h).
inline bool can_smem_transpose_weight(const PointwiseCase& product, const PointwiseBackwardArguments& a) {
  return a.weight.dtype == DataType::float32 && !product.prologue && product.kind == EpilogueKind::plain &&
         suits_tma(weight_matrix(a.weight, 1), a.weight.dtype);
}

/// The weight, for these blocks.
inline TensorMap map_for_smem_transpose(const ConstTensorView& weight) {
  return map_of(weight.data, weight.dtype, weight.sizes[1], weight.sizes[0], weight.strides[0], kTransposed,
                kTransposed);
}

/// These, and tensors, for kernels of both layouts; partials: of its sums.
inline void set_fusion(PointwiseParameters& p, const PointwiseBackwardArguments& a, float* partials) {
  const GradientPrologue& prologue = a.gradient_prologue;
  p.scale = static_cast<const float*>(prologue.grad_scale.data);
  p.shift = static_cast<const float*>(prologue.offset.data);
  p.other_scale = static_cast<const float*>(prologue.output_scale.data);
  p.epilogue.scale = static_cast<const float*>(a.prologue.scale.data);
  p.epilogue.shift = static_cast<const float*>(a.prologue.shift.data);
  p.epilogue.mean = static_cast<const float*>(a.sums.mean.data);
  p.epilogue.activation = a.prologue.activation;
  p.epilogue.partials = partials;
  p.activations_rows = a.grad_y.data;
  p.output_rows = a.grad_x.data;
}

}  // namespace fusedsc::gpu::hopper
