/// The gate of squeeze-excite, from the means of channels: gate(expand(activation(reduce(mean)))), of PyTorch's
/// operators on matrices with a row per image, which are small. Where all of it is given, forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "arguments.h"
#include "operators.h"

namespace fusedsc::aten {

/// The two 1x1 convolutions, each with its bias or none, and what follows them.
struct SqueezeExcite {
  Tensor reduce_weight;  ///< [S, E, 1, 1]
  OptionalTensor reduce_bias;
  Tensor expand_weight;  ///< [E, S, 1, 1]
  OptionalTensor expand_bias;
  std::string_view activation, gate;

  /// `parameters`: weight and bias of either convolution. Throws InvalidArgument where they, or the names, do not fit
  /// `channels`.
  SqueezeExcite(const TensorOptionals& parameters, std::string_view activation, std::string_view gate, const Tensor& x,
                const c10::SymInt& channels);

  c10::SymInt squeezed() const { return reduce_weight.sym_size(0); }
};

/// What backward reads.
struct GateSteps {
  Tensor mean;    ///< [N, E]
  Tensor hidden;  ///< [N, S] the first convolution's result
  Tensor logits;  ///< [N, E] the second one's
};
GateSteps gate_steps(const SqueezeExcite& by, const Tensor& mean);
/// [N, E].
Tensor gate_of(const SqueezeExcite& by, const Tensor& logits);

/// Writes the gradients of the weights and biases, those that are defined; returns the mean's, [N, E], if it is wanted.
Tensor gate_backward(const SqueezeExcite& by, const GateSteps& steps, const Tensor& gate, const Tensor& grad_gate,
                     const std::array<Tensor, 4>& gradients, bool wants_mean);

}  // namespace fusedsc::aten
