/// Squeeze, and the backward pass of excite, as what they are to a device: sums over maps.
#pragma once

#include "fusedsc/fused/squeeze_excite.h"

namespace fusedsc {

/// sums[n,c] = weight * sum over positions of activation(scale[c]*x + shift[c]) * factors.
struct MapSums {
  ConstTensorView x, factors;  ///< factors: like x, or empty for 1
  ConstChannelVector scale, shift;
  Activation activation = Activation::identity;
  TensorView sums;
  double weight = 1;

  explicit MapSums(const SqueezeArguments& a)
      : x(a.x),
        scale(a.scale),
        shift(a.shift),
        activation(a.activation),
        sums(a.mean),
        weight(1 / static_cast<double>(a.x.sizes[2] * a.x.sizes[3])) {}
  explicit MapSums(const ExciteBackwardArguments& a)
      : x(a.x), factors(a.grad_out), scale(a.scale), shift(a.shift), activation(a.activation), sums(a.grad_gate) {}
};

}  // namespace fusedsc
