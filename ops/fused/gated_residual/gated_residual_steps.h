/// The steps of a gated residual's first half: from x to the raw depthwise output, and back from the gradient at its
/// BatchNorm's output.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/gated_residual.h"
#include "fusedsc/fused/normalised_tensor.h"

namespace fusedsc {

inline InvertedResidualArguments with_addresses(InvertedResidualArguments block) {
  if (block.expand_weight) give_address(block.e, block.e);
  give_address(block.d, block.d);
  give_address(block.p, block.p);
  return block;
}

inline InvertedResidualBackwardArguments with_addresses(InvertedResidualBackwardArguments wanted) {
  wanted.forward = with_addresses(wanted.forward);
  if (wanted.forward.expand_weight) give_address(wanted.grad_e, wanted.forward.e);
  give_address(wanted.grad_d, wanted.forward.d);
  return wanted;
}

inline PointwiseArguments expand_of(const InvertedResidualArguments& block) {
  PointwiseArguments expand;
  if (!block.expand_weight) return expand;
  expand.x = block.x;
  expand.weight = block.expand_weight;
  expand.y = block.e;
  expand.allow_tf32 = block.allow_tf32;
  return expand;
}

inline DepthwiseArguments depthwise_of(const InvertedResidualArguments& block, const NormalisedTensor& expand_norm) {
  DepthwiseArguments depthwise;
  depthwise.x = block.expand_weight ? ConstTensorView(block.e) : block.x;
  depthwise.weight = block.dw_weight;
  depthwise.window = block.window;
  if (block.expand_weight) depthwise.prologue = expand_norm.prologue(block.activation);
  depthwise.y = block.d;
  return depthwise;
}

/// What of these steps backward has to do. Without expansion there is neither of the first two.
struct InvertedResidualWants {
  bool expand, grad_e, depthwise;

  explicit InvertedResidualWants(const InvertedResidualBackwardArguments& wanted) {
    const bool expands(wanted.forward.expand_weight);
    expand = expands && (wanted.grad_x || wanted.grad_expand_weight);
    grad_e = expand || (expands && (wanted.grad_expand_bn.weight || wanted.grad_expand_bn.bias));
    depthwise = grad_e || wanted.grad_x || wanted.grad_dw_weight;
    check(!grad_e || wanted.grad_e, "grad_e: it is null, but the wanted gradients pass through it; give memory");
  }
};

inline DepthwiseBackwardArguments depthwise_backward_of(const InvertedResidualBackwardArguments& wanted,
                                                        const InvertedResidualWants& wants,
                                                        const NormalisedGradient& expand_norm,
                                                        const NormalisedGradient& dw_norm) {
  const InvertedResidualArguments& block = wanted.forward;
  const bool expands(block.expand_weight);
  DepthwiseBackwardArguments depthwise;
  depthwise.x = expands ? ConstTensorView(block.e) : block.x;
  depthwise.weight = block.dw_weight;
  depthwise.window = block.window;
  depthwise.grad_y = wanted.grad_d;
  depthwise.gradient_prologue = dw_norm.gradient_prologue(wanted.grad_d);
  depthwise.grad_weight = wanted.grad_dw_weight;
  if (expands) depthwise.prologue = expand_norm.prologue(block.activation);
  if (wants.grad_e) {
    depthwise.grad_x = wanted.grad_e;
    depthwise.sums = expand_norm.sums();
  } else if (!expands && wanted.grad_x) {
    depthwise.grad_x = wanted.grad_x;
    if (block.residual) depthwise.grad_add = wanted.grad_y;
  }
  return depthwise;
}

inline PointwiseBackwardArguments expand_backward_of(const InvertedResidualBackwardArguments& wanted,
                                                     const NormalisedGradient& expand_norm) {
  const InvertedResidualArguments& block = wanted.forward;
  PointwiseBackwardArguments expand;
  expand.x = block.x;
  expand.weight = block.expand_weight;
  expand.grad_y = wanted.grad_e;
  expand.gradient_prologue = expand_norm.gradient_prologue(wanted.grad_e);
  expand.gradient_prologue.output_is_of_x = block.training;
  expand.grad_weight = wanted.grad_expand_weight;
  expand.grad_x = wanted.grad_x;
  if (block.residual && wanted.grad_x) expand.grad_add = wanted.grad_y;
  expand.allow_tf32 = block.allow_tf32;
  return expand;
}

}  // namespace fusedsc
