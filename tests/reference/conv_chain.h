/// A chain of convolutions, step by step: each convolution, BatchNorm and activation for itself, forward and backward.
/// Raw results are rounded to the tensors' type.
#pragma once

#include <vector>

#include "fusedsc/common/problem.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

struct ChainStage {
  bool is_depthwise;
  Window window;
  Array weight;
  Vector bias;  ///< empty: 0
  bool has_batch_norm;
  Vector bn_weight, bn_bias;  ///< empty: 1 and 0
  Normalisation by;           ///< eval, and backward
  Activation activation;
};

struct ConvChain {
  DataType dtype;
  double eps;
  bool training, residual;
  Activation input_activation;
  Vector branch_scale;  ///< one number per image; empty: 1
  Array x;
  std::vector<ChainStage> stages;
  bool stores_activated = false;  ///< between the convolutions results may be stored activated, rounded once more
};

struct ConvChainOutputs {
  Array y;
  std::vector<Array> raw;
  std::vector<BatchStatistics> statistics;  ///< of the batch, in training
};
ConvChainOutputs forward(const ConvChain& chain);

struct ConvChainGradients {
  struct Stage {
    Array weight;
    Vector bias;
    BatchNormGradients bn;
  };
  Array x;
  std::vector<Stage> stages;
};
/// `raw` is what forward stored.
ConvChainGradients backward(const ConvChain& chain, const std::vector<Array>& raw, const Array& grad_y);

/// scale[n]*x
Array scale_images(const Precision& precision, const Array& x, const Vector& scale);

}  // namespace fusedsc::reference
