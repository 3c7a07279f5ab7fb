/// The inverted residual, step by step: [expand -> BatchNorm -> activation ->] DW -> BatchNorm -> activation -> project
/// -> BatchNorm [+ x], forward and backward. Raw convolution outputs are rounded to the tensors' type.
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
};

struct InvertedResidualOutputs {
  Array e, d, p, y;
  BatchStatistics expand, dw, project;  ///< of the batch, in training
};
InvertedResidualOutputs forward(const InvertedResidual& block);

struct InvertedResidualGradients {
  Array x, expand_weight, dw_weight, project_weight;
  BatchNormGradients expand, dw, project;
};
/// `e`, `d` and `p` are what forward stored; the block's Normalisations what it normalised by.
InvertedResidualGradients backward(const InvertedResidual& block, const Array& e, const Array& d, const Array& p,
                                   const Array& grad_y);

}  // namespace fusedsc::reference
