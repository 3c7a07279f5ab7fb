/// The inverted residual with squeeze-excite: its functional core. Around the gate, which PyTorch's operators make of
/// the means, are the two halves of fusedsc/fused/gated_residual.h.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

#include "fusedsc/common/status.h"
#include "fusedsc/fused/gated_residual.h"
#include "inverted_residual_operands.h"
#include "squeeze_excite_gate.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// [N, C] as operators want it, [N, C, 1, 1].
Tensor as_map(const Tensor& matrix) { return matrix.unsqueeze(2).unsqueeze(3); }

Tensors9 gated_residual_forward_meta(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                     const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                     const TensorOptionals& se_parameters, const OptionalTensor& statistics,
                                     at::ArrayRef<double> eps, std::string_view activation,
                                     std::string_view se_activation, std::string_view se_gate, IntArrayRef stride,
                                     IntArrayRef padding, IntArrayRef dilation, bool residual, bool recompute,
                                     bool /*repeats*/) {
  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  check_inverted_residual(x, geometry, bn_parameters, statistics, eps, activation, residual);
  const SqueezeExcite by(se_parameters, se_activation, se_gate, x, geometry.d[1]);
  const auto stored = [&](const SymSizes& sizes, bool wanted) {
    return wanted ? empty_activation(sizes, x) : at::empty({0}, x.options());
  };
  const auto matrix = [&](const c10::SymInt& channels) {
    return recompute ? at::empty({0}, x.options()) : at::empty_symint({x.sym_size(0), channels}, x.options());
  };
  return {empty_activation(geometry.y, x), empty_statistics(x, geometry, statistics),
          matrix(geometry.d[1]),           matrix(by.squeezed()),
          matrix(geometry.d[1]),           stored(geometry.e, geometry.expands && !recompute),
          stored(geometry.d, !recompute),  stored(geometry.d, !recompute),
          stored(geometry.y, !recompute)};
}

Tensors14 gated_residual_backward_meta(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                       const Tensor& dw_weight, const Tensor& project_weight,
                                       const TensorOptionals& bn_parameters, const TensorOptionals& se_parameters,
                                       const Tensor& /*statistics*/, at::TensorList stored, bool /*training*/,
                                       std::string_view /*activation*/, std::string_view se_activation,
                                       std::string_view se_gate, IntArrayRef stride, IntArrayRef padding,
                                       IntArrayRef dilation, bool /*residual*/, std::array<bool, 14> output_mask) {
  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  check_batch_norms(bn_parameters, x, geometry);
  const SqueezeExcite by(se_parameters, se_activation, se_gate, x, geometry.d[1]);
  check_gradient(grad_y, geometry.y, x);
  check(stored.size() == 7, "stored: ", stored.size(), " tensors given; give mean, hidden, logits, e, d, z and p");
  const auto bn = [&](std::size_t i) { return empty_gradient(bn_parameters.get(i), output_mask[4 + i]); };
  const auto se = [&](std::size_t i) { return empty_gradient(se_parameters.get(i), output_mask[10 + i]); };
  return {output_mask[0] ? empty_activation(x.sym_sizes(), x) : Tensor(),
          empty_gradient(expand_weight, output_mask[1]),
          empty_gradient(dw_weight, output_mask[2]),
          empty_gradient(project_weight, output_mask[3]),
          bn(0),
          bn(1),
          bn(2),
          bn(3),
          bn(4),
          bn(5),
          se(0),
          se(1),
          se(2),
          se(3)};
}

Tensors9 gated_residual_forward_kernel(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                       const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                       const TensorOptionals& se_parameters, const OptionalTensor& statistics,
                                       at::ArrayRef<double> eps, std::string_view activation,
                                       std::string_view se_activation, std::string_view se_gate, IntArrayRef stride,
                                       IntArrayRef padding, IntArrayRef dilation, bool residual, bool recompute,
                                       bool repeats) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensors9 outputs = gated_residual_forward_meta(x, expand_weight, dw_weight, project_weight, bn_parameters,
                                                 se_parameters, statistics, eps, activation, se_activation, se_gate,
                                                 stride, padding, dilation, residual, recompute, repeats);
  auto& [y, batch_statistics, mean, hidden, logits, kept_e, kept_d, kept_z, kept_p] = outputs;
  if (y.numel() == 0) return zeroed(outputs);

  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  const SqueezeExcite by(se_parameters, se_activation, se_gate, x, geometry.d[1]);
  const bool training = !statistics;
  const InvertedResidualOperands operands(x, expand_weight, dw_weight, project_weight, bn_parameters,
                                          statistics.value_or(batch_statistics), are_folded(statistics) && !repeats);
  // With `recompute` what is written in between ends here, as soon as it is read: then e's memory is z's. Only p can be
  // done without, in eval mode.
  const auto memory = [&](const Tensor& kept, const SymSizes& sizes) {
    return recompute ? empty_activation(sizes, x) : kept;
  };
  Tensor e = geometry.expands ? memory(kept_e, geometry.e) : Tensor();
  const Tensor d = memory(kept_d, geometry.d);
  const Tensor p = training ? memory(kept_p, geometry.y) : kept_p;
  const Tensor means = recompute ? at::empty_symint({x.sym_size(0), geometry.d[1]}, x.options()) : mean;

  GatedResidualArguments arguments;
  arguments.block = operands.arguments(geometry.window, activation, residual, training);
  arguments.block.repeats_training = repeats;
  arguments.block.expand_bn.eps = eps[0];
  arguments.block.dw_bn.eps = eps[1];
  arguments.block.project_bn.eps = eps[2];
  arguments.block.e = mutable_view(e);
  arguments.block.d = mutable_view(d);
  arguments.block.p = mutable_view(p);
  arguments.block.y = mutable_view(y);
  arguments.mean = mutable_view(as_map(means));
  run(plan_gated_residual_features, arguments, x);

  Tensor gate;
  // Statistics of a batch depend on the gate's last bits, and backward makes it in steps: in training so is it here.
  if (recompute && !training) {
    gate = gate_alone(by, means);
  } else {
    const GateSteps steps = gate_steps(by, means);
    gate = gate_of(by, steps.logits);
    if (!recompute) {
      hidden = steps.hidden;
      logits = steps.logits;
    }
  }
  if (recompute) e.reset();
  const Tensor z = memory(kept_z, geometry.d);
  arguments.gate = view(as_map(gate));
  arguments.z = mutable_view(z);
  run(plan_gated_residual_projection, arguments, x);
  return outputs;
}

Tensors14 gated_residual_backward_kernel(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                         const Tensor& dw_weight, const Tensor& project_weight,
                                         const TensorOptionals& bn_parameters, const TensorOptionals& se_parameters,
                                         const Tensor& statistics, at::TensorList stored, bool training,
                                         std::string_view activation, std::string_view se_activation,
                                         std::string_view se_gate, IntArrayRef stride, IntArrayRef padding,
                                         IntArrayRef dilation, bool residual, std::array<bool, 14> output_mask) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensors14 gradients = gated_residual_backward_meta(
      grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters, se_parameters, statistics, stored, training,
      activation, se_activation, se_gate, stride, padding, dilation, residual, output_mask);
  if (grad_y.numel() == 0) return zeroed(gradients);

  const SqueezeExcite by(se_parameters, se_activation, se_gate, x, dw_weight.sym_size(0));
  const Tensor &mean = stored[0], &hidden = stored[1], &logits = stored[2];
  const Tensor &e = stored[3], &d = stored[4], &z = stored[5], &p = stored[6];
  auto& [g0, g1, g2, g3, w0, b0, w1, b1, w2, b2, s0, s1, s2, s3] = gradients;
  const std::array<Tensor, 6> bn_gradients = {w0, b0, w1, b1, w2, b2};
  const std::array<bool, 4> wants_se = {s0.defined(), s1.defined(), s2.defined(), s3.defined()};
  const std::array<const Tensor*, 7> of_features = {&g0, &g1, &g2, &w0, &b0, &w1, &b1};
  const bool wants_features = std::ranges::any_of(of_features, [](const Tensor* tensor) { return tensor->defined(); });
  const bool wants_gate = wants_features || std::ranges::find(wants_se, true) != wants_se.end();

  const InvertedResidualOperands operands(x, expand_weight, dw_weight, project_weight, bn_parameters, statistics);
  auto forward = operands.arguments(
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation).window,
      activation, residual, training);
  forward.e = mutable_view(e);
  forward.d = mutable_view(d);
  forward.p = mutable_view(p);
  const Tensor grad_y_ = addressable(grad_y), gate = gate_of(by, logits);
  const Tensor grad_d = wants_gate ? at::empty_like(d) : Tensor();
  const Tensor grad_gate = wants_gate ? at::empty_like(gate) : Tensor();
  const Tensor grad_e = wants_features && expand_weight ? at::empty_like(e) : Tensor();
  std::array<Tensor, 6> written;
  for (std::size_t i = 0; i < written.size(); ++i) {
    written[i] = accumulator_for(bn_gradients[i], statistics.scalar_type());
  }

  GatedResidualBackwardArguments arguments;
  arguments.block = backward_arguments(forward, grad_y_, grad_d, grad_e, {g0, g1, g2, g3}, written);
  arguments.gate = view(as_map(gate));
  arguments.z = view(z);
  if (wants_gate) arguments.grad_gate = mutable_view(as_map(grad_gate));
  run(plan_gated_residual_projection_backward, arguments, x);
  GateGradients of_gate;
  if (wants_gate) {
    of_gate = gate_backward(by, {mean, hidden, logits}, gate, grad_gate, wants_features, wants_se);
    std::tie(s0, s1, s2, s3) = std::tuple_cat(of_gate.parameters);
  }
  if (wants_features) {
    arguments.grad_mean = view(as_map(of_gate.mean));
    run(plan_gated_residual_features_backward, arguments, x);
  }
  for (std::size_t i = 0; i < written.size(); ++i) store(written[i], bn_gradients[i]);
  return gradients;
}

void register_kernels(torch::Library& m) {
  m.impl("_gated_residual_forward", translated<gated_residual_forward_kernel>);
  m.impl("_gated_residual_backward", translated<gated_residual_backward_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("_gated_residual_forward", translated<gated_residual_forward_meta>);
  m.impl("_gated_residual_backward", translated<gated_residual_backward_meta>);
}

}  // namespace fusedsc::aten
