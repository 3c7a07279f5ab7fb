/// The gate of squeeze-and-excitation, from the averages that `squeeze` makes to what `excite` multiplies by, for
/// inference and few images: on a GPU two launches, in which each output of either layer is a wave's.
#pragma once

#include <string>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

enum class GateFunction { sigmoid, hardsigmoid };

/// gate = function(expand(activation(reduce(mean)))), its matrices and vectors of mean's dtype, all of them dense.
struct SqueezeExciteGateArguments {
  ConstTensorView mean;            ///< [N, E, 1, 1]
  ConstTensorView reduce_weight;   ///< [S, E, 1, 1]
  ConstChannelVector reduce_bias;  ///< [S], or empty
  Activation activation = Activation::relu;
  ConstTensorView expand_weight;   ///< [E, S, 1, 1]
  ConstChannelVector expand_bias;  ///< [E], or empty
  GateFunction function = GateFunction::hardsigmoid;
  TensorView hidden;  ///< scratch [N, S, 1, 1], accumulation type
  TensorView gate;    ///< [N, E, 1, 1]
};

/// Of more images, products of matrices are faster.
inline constexpr std::int64_t kMostGateImages = 32;

/// Empty, or the reason why there is no kernel for it.
std::string why_not_squeeze_excite_gate(const SqueezeExciteGateArguments& arguments);
/// Throws Unsupported where there is none, naming the reason.
void squeeze_excite_gate(const SqueezeExciteGateArguments& arguments, const Execution& execution);

}  // namespace fusedsc
