#include "squeeze_excite_gate.h"

#include <ATen/ATen.h>

#include <string>

#include "fusedsc/common/status.h"

namespace fusedsc::aten {
namespace {

/// A 1x1 convolution's weight as a matrix; any strides.
Tensor matrix_of(const Tensor& weight) { return weight.select(3, 0).select(2, 0); }

Tensor convolution(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const Tensor columns = matrix_of(weight).t();
  return bias ? at::addmm(*bias, x, columns) : at::mm(x, columns);
}

Tensor activated(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::identity: return x;
    case Activation::relu: return at::relu(x);
    case Activation::relu6: return at::hardtanh(x, 0, 6);
    case Activation::silu: return at::silu(x);
    case Activation::hardswish: return at::hardswish(x);
  }
  return {};
}

/// The gradient at x.
Tensor activation_backward(Activation activation, const Tensor& grad, const Tensor& x) {
  switch (activation) {
    case Activation::identity: return grad;
    case Activation::relu: return at::threshold_backward(grad, x, 0);
    case Activation::relu6: return at::hardtanh_backward(grad, x, 0, 6);
    case Activation::silu: return at::silu_backward(grad, x);
    case Activation::hardswish: return at::hardswish_backward(grad, x);
  }
  return {};
}

Activation activation_of(const SqueezeExcite& by) { return activation_from_name(std::string(by.activation)); }

void check_weight_sizes(const char* name, const Tensor& weight, const Tensor& x, const c10::SymInt& outputs,
                        const c10::SymInt& inputs) {
  check_weight(name, weight, x);
  const SymSizes expected = {outputs, inputs, 1, 1};
  check(weight.sym_sizes() == c10::SymIntArrayRef(expected), name, ": its sizes are ", weight.sym_sizes(),
        "; give a 1x1 convolution's, ", c10::SymIntArrayRef(expected));
}

/// Writes the gradients of a convolution's weight and bias, those that are defined.
void convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& grad_weight, const Tensor& grad_bias) {
  if (grad_weight.defined()) {
    Tensor rows = matrix_of(grad_weight);
    at::mm_out(rows, grad.t(), x);
  }
  if (grad_bias.defined()) {
    Tensor sums = grad_bias;
    at::sum_out(sums, grad, 0);
  }
}

}  // namespace

SqueezeExcite::SqueezeExcite(const TensorOptionals& parameters, std::string_view activation_, std::string_view gate_,
                             const Tensor& x, const c10::SymInt& channels)
    : activation(activation_), gate(gate_) {
  check(parameters.size() == 4, "se_parameters: ", parameters.size(),
        " given; give weight and bias of both convolutions (None where there is no bias)");
  const OptionalTensor reduce = parameters.get(0), expand = parameters.get(2);
  check(reduce.has_value(), "se_reduce_weight: it is None; give the first convolution's weight");
  check(expand.has_value(), "se_expand_weight: it is None; give the second convolution's weight");
  reduce_weight = *reduce;
  reduce_bias = parameters.get(1);
  expand_weight = *expand;
  expand_bias = parameters.get(3);
  check(reduce_weight.dim() != 4 || reduce_weight.sym_size(0) > 0,
        "se_reduce_weight: it has no output channels; give one at least");
  check_weight_sizes("se_reduce_weight", reduce_weight, x,
                     reduce_weight.dim() == 4 ? reduce_weight.sym_size(0) : c10::SymInt(1), channels);
  check_bias("se_reduce_bias", reduce_bias, x, squeezed());
  check_weight_sizes("se_expand_weight", expand_weight, x, channels, squeezed());
  check_bias("se_expand_bias", expand_bias, x, channels);
  try {
    activation_of(*this);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(std::string("se_") + error.what());
  }
  check(gate == "sigmoid" || gate == "hardsigmoid", "se_gate: unknown name \"", gate,
        "\"; use one of sigmoid, hardsigmoid");
}

GateSteps gate_steps(const SqueezeExcite& by, const Tensor& mean) {
  const Tensor hidden = convolution(mean, by.reduce_weight, by.reduce_bias);
  return {mean, hidden, convolution(activated(activation_of(by), hidden), by.expand_weight, by.expand_bias)};
}

Tensor gate_of(const SqueezeExcite& by, const Tensor& logits) {
  return by.gate == "sigmoid" ? at::sigmoid(logits) : at::hardsigmoid(logits);
}

Tensor gate_backward(const SqueezeExcite& by, const GateSteps& steps, const Tensor& gate, const Tensor& grad_gate,
                     const std::array<Tensor, 4>& gradients, bool wants_mean) {
  const auto& [grad_reduce_weight, grad_reduce_bias, grad_expand_weight, grad_expand_bias] = gradients;
  const Tensor grad_logits =
      by.gate == "sigmoid" ? at::sigmoid_backward(grad_gate, gate) : at::hardsigmoid_backward(grad_gate, steps.logits);
  const Activation activation = activation_of(by);
  const Tensor reduced = grad_expand_weight.defined() ? activated(activation, steps.hidden) : Tensor();
  convolution_backward(grad_logits, reduced, grad_expand_weight, grad_expand_bias);
  if (!wants_mean && !grad_reduce_weight.defined() && !grad_reduce_bias.defined()) return {};
  const Tensor grad_hidden =
      activation_backward(activation, at::mm(grad_logits, matrix_of(by.expand_weight)), steps.hidden);
  convolution_backward(grad_hidden, steps.mean, grad_reduce_weight, grad_reduce_bias);
  return wants_mean ? at::mm(grad_hidden, matrix_of(by.reduce_weight)) : Tensor();
}

}  // namespace fusedsc::aten
