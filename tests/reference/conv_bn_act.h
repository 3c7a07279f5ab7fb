/// Dense convolution -> BatchNorm -> activation, step by step, forward and backward. A convolution is the pointwise one
/// of its patches.
#pragma once

#include "fusedsc/common/problem.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

/// What forward and backward have in common.
struct ConvBnAct {
  DataType dtype;
  Window window;
  Activation activation;
  double eps;
  bool training;
  Array x, weight;
  Vector bn_weight, bn_bias;  ///< empty: not given
  bool tf32 = false;          ///< gradients may be rounded to TensorFloat-32; x and weight are what may become of them
};

struct ConvBnActOutputs {
  Array y;
  BatchStatistics statistics;  ///< of the batch, in training
};
/// `by` is what normalises in eval mode. The raw output may be rounded to the tensors' type on its way.
ConvBnActOutputs forward(const ConvBnAct& block, const Normalisation& by);

struct ConvBnActGradients {
  Array x, weight;
  Vector bn_weight, bn_bias;
};
/// `by` is what forward normalised by. What is multiplied may be rounded to the tensors' type.
ConvBnActGradients backward(const ConvBnAct& block, const Normalisation& by, const Array& grad_y);

}  // namespace fusedsc::reference
