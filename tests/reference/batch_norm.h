/// BatchNorm's arithmetic per channel, between the passes of a block.
#pragma once

#include "reference/fusion.h"

namespace fusedsc::reference {

/// What normalises a tensor: given in eval mode, from the batch in training.
struct Normalisation {
  Vector mean, invstd;
};

struct BatchStatistics {
  Vector mean, variance, invstd;  ///< the unbiased variance
};
BatchStatistics batch_statistics(const Precision& precision, const Array& x, double eps);

/// m2/(count - 1); of one value 0
Vector variance(const Precision& precision, const Vector& m2, std::int64_t count);

/// 1/sqrt(m2/count + eps)
Vector invstd(const Precision& precision, const Vector& m2, std::int64_t count, double eps);

/// BatchNorm followed by an activation as one affine map; an empty `weight` stands for 1, an empty `bias` for 0.
Affine batch_norm(const Precision& precision, const Vector& weight, const Vector& bias, const Normalisation& by,
                  Activation activation);

/// From the sums over the gradient g at BatchNorm's output to the gradient at its input, as a map of g and x, and to
/// the gradients of its parameters.
struct BatchNormGradients {
  GradientAffine input;
  Vector weight, bias;
};
BatchNormGradients batch_norm_backward(const Precision& precision, const Vector& weight, const Normalisation& by,
                                       const Sums& sums, std::int64_t count, bool training);

}  // namespace fusedsc::reference
