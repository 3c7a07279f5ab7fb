#include "squeeze_excite_gate.h"

#include <ATen/ATen.h>

#include <string>

#include "fusedsc/common/status.h"
#include "fusedsc/fused/squeeze_excite_gate.h"
#include "tensor_conversion.h"

namespace fusedsc::aten {
namespace {

/// A matrix [N, C] as a channels_last image with a row for each of its rows, and back.
Tensor image_of(const Tensor& matrix) {
  return matrix.contiguous().view({1, matrix.size(0), 1, matrix.size(1)}).permute({0, 3, 1, 2});
}
Tensor matrix_of(const Tensor& image) { return image.permute({0, 2, 3, 1}).reshape({image.size(2), image.size(1)}); }

Tensor convolution(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return matrix_of(pointwise_conv2d(image_of(x), weight, bias, 1));
}

/// Gradients of x, weight and bias.
Tensors3 convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, std::array<bool, 3> wants) {
  const auto [grad_x, grad_weight, grad_bias] =
      pointwise_conv2d_backward(image_of(grad), image_of(x), weight, 1, wants);
  return {wants[0] ? matrix_of(grad_x) : Tensor(), grad_weight, grad_bias};
}

/// PyTorch's kernels multiply by a sixth of single precision, whatever the type: on GPUs, and in gradients everywhere.
bool wants_exact_sixth(const Tensor& x) { return x.scalar_type() == at::kDouble; }
Tensor exact_hardsigmoid(const Tensor& x) { return at::hardtanh(x.add(3), 0, 6).div_(6); }

Tensor activated(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::identity: return x;
    case Activation::relu: return at::relu(x);
    case Activation::relu6: return at::hardtanh(x, 0, 6);
    case Activation::silu: return at::silu(x);
    case Activation::hardswish: return wants_exact_sixth(x) ? exact_hardsigmoid(x).mul_(x) : at::hardswish(x);
    case Activation::gelu: return at::gelu(x);
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
    case Activation::gelu: return at::gelu_backward(grad, x);
  }
  return {};
}

/// The gradient at the logits.
Tensor gate_function_backward(const SqueezeExcite& by, const Tensor& grad, const Tensor& logits, const Tensor& gate) {
  if (by.gate == "sigmoid") return at::sigmoid_backward(grad, gate);
  return wants_exact_sixth(logits) ? at::hardtanh_backward(grad, logits, -3, 3).div_(6)
                                   : at::hardsigmoid_backward(grad, logits);
}

Activation activation_of(const SqueezeExcite& by) { return activation_from_name(std::string(by.activation)); }

void check_weight_sizes(const char* name, const Tensor& weight, const Tensor& x, const c10::SymInt& outputs,
                        const c10::SymInt& inputs) {
  check_weight(name, weight, x);
  const SymSizes expected = {outputs, inputs, 1, 1};
  check(weight.sym_sizes() == c10::SymIntArrayRef(expected), name, ": its sizes are ", weight.sym_sizes(),
        "; give a 1x1 convolution's, ", c10::SymIntArrayRef(expected));
}

}  // namespace

TensorOptionals se_parameters(const OptionalTensor& reduce_weight, const OptionalTensor& reduce_bias,
                              const OptionalTensor& expand_weight, const OptionalTensor& expand_bias) {
  if (reduce_weight) return TensorOptionals({reduce_weight, reduce_bias, expand_weight, expand_bias});
  check(!reduce_bias && !expand_weight && !expand_bias,
        "se_reduce_weight: it is None, but others of squeeze-excite are given; give its two weights or none of it");
  return TensorOptionals();
}

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
  if (by.gate == "sigmoid") return at::sigmoid(logits);
  return wants_exact_sixth(logits) ? exact_hardsigmoid(logits) : at::hardsigmoid(logits);
}

Tensor gate_alone(const SqueezeExcite& by, const Tensor& mean) {
  if (mean.is_cuda()) {
    const Tensor mean_ = mean.contiguous(), reduce_weight = by.reduce_weight.contiguous(),
                 expand_weight = by.expand_weight.contiguous();
    const Tensor reduce_bias = vector_of(by.reduce_bias, mean.scalar_type()),
                 expand_bias = vector_of(by.expand_bias, mean.scalar_type());
    const Tensor hidden =
        at::empty({mean.size(0), reduce_weight.size(0)}, mean.options().dtype(accumulation_type(mean.scalar_type())));
    const Tensor gate = at::empty_like(mean_);
    const auto map = [](const Tensor& matrix) {
      return mutable_view(matrix.view({matrix.size(0), matrix.size(1), 1, 1}));
    };
    const SqueezeExciteGateArguments arguments{
        .mean = map(mean_),
        .reduce_weight = view(reduce_weight),
        .reduce_bias = channels(reduce_bias),
        .activation = activation_of(by),
        .expand_weight = view(expand_weight),
        .expand_bias = channels(expand_bias),
        .function = by.gate == "sigmoid" ? GateFunction::sigmoid : GateFunction::hardsigmoid,
        .hidden = map(hidden),
        .gate = map(gate)};
    if (why_not_squeeze_excite_gate(arguments).empty()) {
      const c10::DeviceGuard guard(mean.device());
      squeeze_excite_gate(arguments, execution_on(mean.device()));
      return gate;
    }
  }
  return gate_of(by, gate_steps(by, mean).logits);
}

GateGradients gate_backward(const SqueezeExcite& by, const GateSteps& steps, const Tensor& gate,
                            const Tensor& grad_gate, bool wants_mean, const std::array<bool, 4>& wants) {
  GateGradients gradients;
  auto& [reduce_weight, reduce_bias, expand_weight, expand_bias] = gradients.parameters;
  const Tensor grad_logits = gate_function_backward(by, grad_gate, steps.logits, gate);
  const Activation activation = activation_of(by);
  const bool wants_hidden = wants_mean || wants[0] || wants[1];
  Tensor grad_reduced;
  std::tie(grad_reduced, expand_weight, expand_bias) = convolution_backward(
      grad_logits, activated(activation, steps.hidden), by.expand_weight, {wants_hidden, wants[2], wants[3]});
  if (!wants_hidden) return gradients;
  const Tensor grad_hidden = activation_backward(activation, grad_reduced, steps.hidden);
  std::tie(gradients.mean, reduce_weight, reduce_bias) =
      convolution_backward(grad_hidden, steps.mean, by.reduce_weight, {wants_mean, wants[0], wants[1]});
  return gradients;
}

}  // namespace fusedsc::aten
