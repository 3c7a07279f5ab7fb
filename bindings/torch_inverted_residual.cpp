/// The inverted residual, [expand -> BN -> act ->] DW -> BN -> act -> project -> BN [+ x]: its functional core.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "block_layout.h"
#include "explain.h"
#include "fusedsc/fused/gated_residual.h"
#include "inverted_residual_operands.h"
#include "squeeze_excite_gate.h"

namespace fusedsc::aten {
namespace {

Tensors5 inverted_residual_forward_meta(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                        const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                        const OptionalTensor& statistics, at::ArrayRef<double> eps,
                                        std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                        IntArrayRef dilation, bool residual, bool recompute) {
  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  check_inverted_residual(x, geometry, bn_parameters, statistics, eps, activation, residual);
  const auto stored = [&x](const SymSizes& sizes, bool wanted) {
    return wanted ? empty_activation(sizes, x) : at::empty({0}, x.options());
  };
  return {empty_activation(geometry.y, x), empty_statistics(x, geometry, statistics),
          stored(geometry.e, geometry.expands && !recompute), stored(geometry.d, !recompute),
          stored(geometry.y, !recompute)};
}

Tensors10 inverted_residual_backward_meta(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                          const Tensor& dw_weight, const Tensor& project_weight,
                                          const TensorOptionals& bn_parameters, const Tensor& /*statistics*/,
                                          const Tensor& /*e*/, const Tensor& /*d*/, const Tensor& /*p*/,
                                          bool /*training*/, std::string_view /*activation*/, IntArrayRef stride,
                                          IntArrayRef padding, IntArrayRef dilation, bool /*residual*/,
                                          std::array<bool, 10> output_mask) {
  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  check_batch_norms(bn_parameters, x, geometry);
  check_gradient(grad_y, geometry.y, x);
  const auto bn_gradient = [&](std::size_t i) { return empty_gradient(bn_parameters.get(i), output_mask[4 + i]); };
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(),
          empty_gradient(expand_weight, output_mask[1]),
          empty_gradient(dw_weight, output_mask[2]),
          empty_gradient(project_weight, output_mask[3]),
          bn_gradient(0),
          bn_gradient(1),
          bn_gradient(2),
          bn_gradient(3),
          bn_gradient(4),
          bn_gradient(5)};
}

InvertedResidualArguments forward_arguments(const InvertedResidualOperands& operands, const Window& window,
                                            std::string_view activation, bool residual, bool training,
                                            at::ArrayRef<double> eps, const Tensors5& outputs) {
  auto arguments = operands.arguments(window, activation, residual, training);
  arguments.expand_bn.eps = eps[0];
  arguments.dw_bn.eps = eps[1];
  arguments.project_bn.eps = eps[2];
  arguments.e = mutable_view(std::get<2>(outputs));
  arguments.d = mutable_view(std::get<3>(outputs));
  arguments.p = mutable_view(std::get<4>(outputs));
  arguments.y = mutable_view(std::get<0>(outputs));
  return arguments;
}

Tensors5 inverted_residual_forward_kernel(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                          const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                          const OptionalTensor& statistics, at::ArrayRef<double> eps,
                                          std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                          IntArrayRef dilation, bool residual, bool recompute) {
  // In training the kernel always writes e, d and p; with `recompute` they end here. In eval mode it can do without.
  const bool keeps_raw = !statistics || !recompute;
  const auto [y, batch_statistics, e, d, p] =
      inverted_residual_forward_meta(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, eps,
                                     activation, stride, padding, dilation, residual, !keeps_raw);
  const auto kept = [&](const Tensor& tensor) { return recompute ? at::empty({0}, x.options()) : tensor; };
  const Tensors5 outputs(y, batch_statistics, kept(e), kept(d), kept(p));
  if (y.numel() == 0) return zeroed(outputs);
  const bool training = !statistics;
  const InvertedResidualOperands operands(x, expand_weight, dw_weight, project_weight, bn_parameters,
                                          statistics.value_or(batch_statistics), are_folded(statistics));
  const auto arguments = forward_arguments(operands, window_of(dw_weight, stride, padding, dilation), activation,
                                           residual, training, eps, {y, batch_statistics, e, d, p});
  run(plan_inverted_residual, arguments, x);
  return outputs;
}

Tensors10 inverted_residual_backward_kernel(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                            const Tensor& dw_weight, const Tensor& project_weight,
                                            const TensorOptionals& bn_parameters, const Tensor& statistics,
                                            const Tensor& e, const Tensor& d, const Tensor& p, bool training,
                                            std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                            IntArrayRef dilation, bool residual, std::array<bool, 10> output_mask) {
  const Tensors10 gradients =
      inverted_residual_backward_meta(grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, e,
                                      d, p, training, activation, stride, padding, dilation, residual, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);

  const InvertedResidualOperands operands(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics);
  auto forward = operands.arguments(window_of(dw_weight, stride, padding, dilation), activation, residual, training);
  forward.e = mutable_view(e);
  forward.d = mutable_view(d);
  forward.p = mutable_view(p);
  const Tensor grad_y_ = addressable(grad_y), grad_d = at::empty_like(d);
  const Tensor grad_e = expand_weight ? at::empty_like(e) : Tensor();
  const auto& [g0, g1, g2, g3, w0, b0, w1, b1, w2, b2] = gradients;
  const std::array<Tensor, 6> bn_gradients = {w0, b0, w1, b1, w2, b2};
  std::array<Tensor, 6> written;
  for (std::size_t i = 0; i < written.size(); ++i) {
    written[i] = accumulator_for(bn_gradients[i], statistics.scalar_type());
  }
  run(plan_inverted_residual_backward, backward_arguments(forward, grad_y_, grad_d, grad_e, {g0, g1, g2, g3}, written),
      x);
  for (std::size_t i = 0; i < written.size(); ++i) store(written[i], bn_gradients[i]);
  return gradients;
}

/// With squeeze-excite. Either half has the same implementations; d stands for what has its sizes.
Explanation explanation_with_gate(const InvertedResidualArguments& forward,
                                  const InvertedResidualBackwardArguments& backward, const Tensor& d) {
  const Tensor gate = at::empty({d.size(0), d.size(1), 1, 1}, d.options());
  GatedResidualArguments gated;
  gated.block = forward;
  gated.gate = view(gate);
  gated.z = mutable_view(d);
  GatedResidualBackwardArguments gated_backward;
  gated_backward.block = backward;
  gated_backward.gate = view(gate);
  gated_backward.z = view(d);
  return explanation(explain_gated_residual_projection(gated),
                     explain_gated_residual_projection_backward(gated_backward));
}

Explanation explain_inverted_residual_kernel(
    const Tensor& given_x, const OptionalTensor& expand_weight, const TensorOptionals& expand_bn,
    const Tensor& dw_weight, const TensorOptionals& dw_bn, const Tensor& project_weight,
    const TensorOptionals& project_bn, bool training, std::optional<at::ArrayRef<double>> /*momentum*/,
    at::ArrayRef<double> /*eps*/, std::string_view activation, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool residual, std::optional<bool> /*recompute*/, const OptionalTensor& se_reduce_weight,
    const OptionalTensor& se_reduce_bias, const OptionalTensor& se_expand_weight, const OptionalTensor& se_expand_bias,
    std::string_view se_activation, std::string_view se_gate) {
  const BlockLayout layout(given_x, dw_weight, project_weight,
                           {.window = window_of(dw_weight, stride, padding, dilation),
                            .expands = expand_weight.has_value(),
                            .differentiates = training});
  const Tensor x = layout.empty_inside(given_x);
  TensorOptionals bn_parameters;
  for (const TensorOptionals& bn : {expand_bn, dw_bn, project_bn}) {
    for (const std::size_t i : {0, 1}) bn_parameters.push_back(bn.get(i));
  }
  const std::array<double, 3> eps = {1, 1, 1};  // of no consequence for the choice
  const Tensors5 outputs =
      inverted_residual_forward_meta(x, expand_weight, dw_weight, project_weight, bn_parameters, {}, eps, activation,
                                     stride, padding, dilation, residual, /*recompute=*/false);
  const auto& [y, statistics, e, d, p] = outputs;
  const bool batch_statistics = training || !dw_bn.get(2);
  const InvertedResidualOperands operands(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics);
  const auto forward = forward_arguments(operands, window_of(dw_weight, stride, padding, dilation), activation,
                                         residual, batch_statistics, eps, outputs);
  const ConvolutionGradients gradients = {operands.x, operands.expand_weight, operands.dw_weight,
                                          operands.project_weight};
  const TensorOptionals squeezes = se_parameters(se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias);
  if (!squeezes.empty()) SqueezeExcite(squeezes, se_activation, se_gate, x, d.sym_size(1));
  const auto backward = backward_arguments(forward, y, d, e, gradients, operands.bn_parameters);
  const Explanation found =
      se_reduce_weight ? explanation_with_gate(forward, backward, d)
                       : explanation(explain_inverted_residual(forward), explain_inverted_residual_backward(backward));
  return layout.explained(found);
}

void register_kernels(torch::Library& m) {
  m.impl("_inverted_residual_forward", inverted_residual_forward_kernel);
  m.impl("_inverted_residual_backward", inverted_residual_backward_kernel);
  m.impl("_explain_inverted_residual", explain_inverted_residual_kernel);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("_inverted_residual_forward", inverted_residual_forward_meta);
  m.impl("_inverted_residual_backward", inverted_residual_backward_meta);
}

}  // namespace fusedsc::aten
