/// The gate of squeeze-excite, from the means of channels: gate(expand(activation(reduce(mean)))), forward and
/// backward. Its convolutions are pointwise ones of a row per image, all of them small; what is between them are
/// PyTorch's operators, but for few images on a GPU, of which no steps are kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "arguments.h"
#include "operators.h"

namespace fusedsc::aten {

/// Weight and bias of either convolution, as operators take them: without the first weight nothing at all. Throws
/// InvalidArgument where others are given without it.
TensorOptionals se_parameters(const OptionalTensor& reduce_weight, const OptionalTensor& reduce_bias,
                              const OptionalTensor& expand_weight, const OptionalTensor& expand_bias);

/// The two 1x1 convolutions, each with its bias or none, and what follows them.
struct SqueezeExcite {
  Tensor reduce_weight;  ///< [S, E, 1, 1]
  OptionalTensor reduce_bias;
  Tensor expand_weight;  ///< [E, S, 1, 1]
  OptionalTensor expand_bias;
  std::string_view activation, gate;

  /// `parameters`: as above. Throws InvalidArgument where they, or the names, do not fit
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
/// The gate of the means, of which nothing is kept for backward: of few images on a GPU by kernels of its own.
Tensor gate_alone(const SqueezeExcite& by, const Tensor& mean);

struct GateGradients {
  Tensor mean;                       ///< [N, E]
  std::array<Tensor, 4> parameters;  ///< in the order in which they were given
};
/// Those that are wanted; the others are undefined.
GateGradients gate_backward(const SqueezeExcite& by, const GateSteps& steps, const Tensor& gate,
                            const Tensor& grad_gate, bool wants_mean, const std::array<bool, 4>& wants);

}  // namespace fusedsc::aten
