/// The fused block, step by step: DW -> BatchNorm -> activation -> PW, forward and backward.
#pragma once

#include <optional>

#include "fusedsc/common/problem.h"
#include "reference/batch_norm.h"

namespace fusedsc::reference {

/// What forward and backward have in common.
struct DscBlock {
  DataType dtype;
  Window window;
  Activation activation;
  double eps;
  bool training;
  Array x, dw_weight, pw_weight;
  Vector dw_bias, pw_bias, bn_weight, bn_bias;  ///< empty: not given
  std::int64_t groups = 1;
  std::optional<double> overlap;  ///< given: of a sliding-channel convolution in the pointwise one's place
};

struct DscBlockOutputs {
  Array d, y;
  BatchStatistics statistics;  ///< of the batch, in training
};
/// `by` is what normalises in eval mode. `stores_d`: d is rounded to the tensors' type between the passes.
DscBlockOutputs forward(const DscBlock& block, const Normalisation& by, bool stores_d);

struct DscBlockGradients {
  Array x, dw_weight, pw_weight;
  Vector dw_bias, pw_bias, bn_weight, bn_bias;
};
/// `by` is what forward normalised by, `d` what it stored or null: then it is computed again, and rounded to the
/// tensors' type where `rounds_d`. `stores_grad_bn`: so is the gradient at BatchNorm's output, between the passes.
DscBlockGradients backward(const DscBlock& block, const Normalisation& by, const Array* d, bool rounds_d,
                           const Array& grad_y, bool stores_grad_bn);

}  // namespace fusedsc::reference
