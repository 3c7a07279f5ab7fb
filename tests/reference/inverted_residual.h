/// The inverted residual, step by step: [expand -> BatchNorm -> activation ->] DW -> BatchNorm -> activation -> project
/// -> BatchNorm [+ x], forward and backward. Raw convolution outputs are rounded to the tensors' type. A gate, where
/// there is one, is given, and so is the gradient of what it is made of.
#pragma once

#include "fusedsc/common/problem.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

/// One BatchNorm's parameters, and what it normalises by where that is given.
struct BatchNormState {
  Vector weight, bias;  ///< empty: 1 and 0
  Normalisation by;
};

struct InvertedResidual {
  DataType dtype;
  Window window;
  Activation activation;
  double eps;
  bool training;
  bool residual;
  bool expands;
  Array x, expand_weight, dw_weight, project_weight;
  BatchNormState expand, dw, project;
  bool stores_activated = false;  ///< between the convolutions e and d may be stored activated, rounded once more
  /// With squeeze-excite, [N, E, 1, 1]: what the activated depthwise output is multiplied by. Backward: the gradient
  /// that comes back to its averages, and the product as forward stored it.
  Array gate = {}, grad_mean = {}, z = {};

  bool is_gated() const { return !gate.elements.empty(); }
};

struct InvertedResidualOutputs {
  Array e, d, p, y;
  Array mean, z;  ///< with a gate: the averages of what it multiplies, and what the projection reads
  BatchStatistics expand, dw, project;  ///< of the batch, in training
};
InvertedResidualOutputs forward(const InvertedResidual& block);

struct InvertedResidualGradients {
  Array x, expand_weight, dw_weight, project_weight;
  Array gate;  ///< where there is one
  BatchNormGradients expand, dw, project;
};
/// `e`, `d` and `p` are what forward stored; the block's Normalisations what it normalised by.
InvertedResidualGradients backward(const InvertedResidual& block, const Array& e, const Array& d, const Array& p,
                                   const Array& grad_y);

}  // namespace fusedsc::reference
