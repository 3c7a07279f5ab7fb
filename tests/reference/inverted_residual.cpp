#include "reference/inverted_residual.h"

#include "reference/convolution.h"
#include "reference/squeeze_excite.h"

namespace fusedsc::reference {
namespace {

/// A convolution's raw output, and BatchNorm and activation as what reads it does them.
struct Normalised {
  Array raw;
  BatchStatistics statistics;
  Affine map;
  Array activated;
};

Normalised normalise(const InvertedResidual& block, const Array& raw, const BatchNormState& state,
                     Activation activation) {
  const Precision precision(block.dtype);
  Normalised result{raw, {}, {}, {}};
  Normalisation by = state.by;
  if (block.training) {
    result.statistics = batch_statistics(precision, raw, block.eps);
    by = {result.statistics.mean, result.statistics.invstd};
  }
  result.map = batch_norm(precision, state.weight, state.bias, by, activation);
  result.activated = apply(precision, stored(precision, raw), result.map);
  if (block.stores_activated) result.activated = stored(precision, result.activated);
  return result;
}

/// The gradient at a convolution's raw output from the one at its BatchNorm's.
Array through_batch_norm(const InvertedResidual& block, const Array& grad, const Array& raw,
                         const BatchNormState& state, BatchNormGradients& gradients) {
  const Precision precision(block.dtype);
  const Sums sums = gradient_sums(precision, grad, raw, state.by.mean);
  gradients = batch_norm_backward(precision, state.weight, state.by, sums, raw.elements_per_channel(), block.training);
  return apply(precision, grad, raw, gradients.input);
}

}  // namespace

InvertedResidualOutputs forward(const InvertedResidual& block) {
  const Precision precision(block.dtype);
  InvertedResidualOutputs outputs;
  Array a = block.x;
  if (block.expands) {
    const Array raw = pointwise(precision, block.x, block.expand_weight, {});
    const Normalised e = normalise(block, raw, block.expand, block.activation);
    outputs.e = e.raw;
    outputs.expand = e.statistics;
    a = e.activated;
  }
  const Array raw = depthwise(precision, a, block.dw_weight, {}, block.window);
  const Normalised d = normalise(block, raw, block.dw, block.activation);
  outputs.d = d.raw;
  outputs.dw = d.statistics;
  if (block.is_gated()) {
    const Array d_read = stored(precision, d.raw);
    outputs.mean = map_averages(precision, d_read, d.map);
    outputs.z = stored(precision, gated(precision, d_read, d.map, block.gate));
  }
  const Array projected = pointwise(precision, block.is_gated() ? outputs.z : d.activated, block.project_weight, {});
  const Normalised p = normalise(block, projected, block.project, Activation::identity);
  outputs.p = p.raw;
  outputs.project = p.statistics;
  outputs.y = block.residual ? add(precision, p.activated, block.x) : p.activated;
  return outputs;
}

InvertedResidualGradients backward(const InvertedResidual& block, const Array& e, const Array& d, const Array& p,
                                   const Array& grad_y) {
  const Precision precision(block.dtype);
  InvertedResidualGradients gradients;
  const Affine dw_map = batch_norm(precision, block.dw.weight, block.dw.bias, block.dw.by, block.activation);
  const Array grad_p = through_batch_norm(block, grad_y, p, block.project, gradients.project);
  const Array projected = block.is_gated() ? block.z : apply(precision, d, dw_map);
  gradients.project_weight = pointwise_weight_gradient(precision, grad_p, projected, block.project_weight.sizes);
  Array grad_dw_output = pointwise_input_gradient(precision, grad_p, block.project_weight, d.sizes);
  if (block.is_gated()) {
    grad_dw_output = stored(precision, grad_dw_output);
    gradients.gate = gate_gradient(precision, grad_dw_output, d, dw_map);
  }
  const Array grad_dw_bn = stored(
      precision, block.is_gated() ? gated_gradient(precision, grad_dw_output, block.gate, block.grad_mean, d, dw_map)
                                  : apply_backward(precision, grad_dw_output, d, dw_map));
  const Array grad_d = through_batch_norm(block, grad_dw_bn, d, block.dw, gradients.dw);
  const Sizes& dw_sizes = block.dw_weight.sizes;
  if (!block.expands) {
    gradients.dw_weight = depthwise_weight_gradient(precision, grad_d, block.x, block.window, dw_sizes);
    gradients.x = depthwise_input_gradient(precision, grad_d, block.dw_weight, block.window, block.x.sizes);
  } else {
    const Affine map = batch_norm(precision, block.expand.weight, block.expand.bias, block.expand.by, block.activation);
    const Array a = apply(precision, e, map);
    gradients.dw_weight = depthwise_weight_gradient(precision, grad_d, a, block.window, dw_sizes);
    const Array grad_a = depthwise_input_gradient(precision, grad_d, block.dw_weight, block.window, e.sizes);
    const Array grad_expand_bn = stored(precision, apply_backward(precision, grad_a, e, map));
    const Array grad_e = through_batch_norm(block, grad_expand_bn, e, block.expand, gradients.expand);
    gradients.expand_weight = pointwise_weight_gradient(precision, grad_e, block.x, block.expand_weight.sizes);
    gradients.x = pointwise_input_gradient(precision, grad_e, block.expand_weight, block.x.sizes);
  }
  if (block.residual) gradients.x = add(precision, gradients.x, grad_y);
  return gradients;
}

}  // namespace fusedsc::reference
