/// The inverted residual, [expand -> BN -> act ->] DW -> BN -> act -> project -> BN [+ x]: a chain of convolutions, or,
/// with squeeze-excite, a gated residual.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "block_layout.h"
#include "conv_chain_operands.h"
#include "explain.h"
#include "fusedsc/common/status.h"
#include "inverted_residual_operands.h"
#include "kept_tensors.h"
#include "running_statistics.h"
#include "squeeze_excite_gate.h"
#include "transforms.h"
#include "translated.h"
#include "will_differentiate.h"

namespace fusedsc::aten {
namespace {

/// The block without squeeze-excite as a chain.
struct Chain {
  std::vector<Tensor> weights;
  TensorOptionals biases, bn_parameters;
  std::vector<double> eps;
  ConvChainOptions options;

  /// Of all three BatchNorms: without expansion nothing is made of the first.
  Chain(const OptionalTensor& expand_weight, const Tensor& dw_weight, const Tensor& project_weight,
        const TensorOptionals& three_bn_parameters, at::ArrayRef<double> three_eps, std::string_view activation,
        const Window& window, bool residual) {
    options.residual = residual;
    options.input_activation = "identity";
    if (expand_weight) add(*expand_weight, three_bn_parameters, three_eps, 0, activation, Window(), 1);
    add(dw_weight, three_bn_parameters, three_eps, 1, activation, window,
        dw_weight.sym_size(0).guard_int(__FILE__, __LINE__));
    add(project_weight, three_bn_parameters, three_eps, 2, "identity", Window(), 1);
  }

  ConvChainTensors tensors() const { return {weights, biases, bn_parameters}; }

  std::tuple<Tensor, Tensor, std::vector<Tensor>> forward(const Tensor& x, const OptionalTensor& statistics,
                                                          bool recompute) const {
    const ConvChainOptions& o = options;
    return conv_chain_forward(x, weights, biases, o.has_bn, bn_parameters, statistics, eps, o.activations, o.strides,
                              o.paddings, o.dilations, o.groups, o.residual, {}, o.input_activation, recompute, {}, 1);
  }

 private:
  void add(const Tensor& weight, const TensorOptionals& three_bn_parameters, at::ArrayRef<double> three_eps,
           std::size_t norm, std::string_view activation, const Window& window, std::int64_t groups) {
    weights.push_back(weight);
    biases.push_back(std::nullopt);
    bn_parameters.push_back(three_bn_parameters.get(2 * norm));
    bn_parameters.push_back(three_bn_parameters.get(2 * norm + 1));
    eps.push_back(three_eps[norm]);
    options.has_bn.push_back(true);
    options.activations.push_back(std::string(activation));
    const Padding& padding = window.padding;
    options.strides.insert(options.strides.end(), window.stride.begin(), window.stride.end());
    options.paddings.insert(options.paddings.end(), {padding.left, padding.right, padding.top, padding.bottom});
    options.dilations.insert(options.dilations.end(), window.dilation.begin(), window.dilation.end());
    options.groups.push_back(groups);
  }
};

/// [weight, bias, running_mean, running_var, num_batches_tracked], as the schema passes one BatchNorm.
struct BatchNorm {
  OptionalTensor weight, bias;
  RunningStatistics running;

  BatchNorm(const char* name, const TensorOptionals& tensors) {
    check(tensors.size() == 5, name, ": ", tensors.size(),
          " tensors given; give weight, bias, running_mean, running_var and num_batches_tracked, each or None");
    weight = tensors.get(0);
    bias = tensors.get(1);
    running = {tensors.get(2), tensors.get(3), tensors.get(4)};
  }
  BatchNorm() = default;
};

/// One number for each of the three BatchNorms.
std::array<double, 3> three_of(const char* name, at::ArrayRef<double> numbers) {
  check(numbers.size() == 1 || numbers.size() == 3, name, ": ", numbers.size(),
        " numbers given; give one, or three (expand, dw, project)");
  return {numbers.front(), numbers[numbers.size() / 2], numbers.back()};
}

Tensor inverted_residual_composite(const Tensor& x, const OptionalTensor& expand_weight,
                                   const TensorOptionals& expand_bn, const Tensor& dw_weight,
                                   const TensorOptionals& dw_bn, const Tensor& project_weight,
                                   const TensorOptionals& project_bn, bool training,
                                   std::optional<at::ArrayRef<double>> momentum, at::ArrayRef<double> eps,
                                   std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                   IntArrayRef dilation, bool residual, std::optional<bool> recompute,
                                   const OptionalTensor& se_reduce_weight, const OptionalTensor& se_reduce_bias,
                                   const OptionalTensor& se_expand_weight, const OptionalTensor& se_expand_bias,
                                   std::string_view se_activation, std::string_view se_gate) {
  refuse_transforms("inverted_residual", x, expand_weight, expand_bn, dw_weight, dw_bn, project_weight, project_bn,
                    se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias);
  check_activation("x", x);
  const TensorOptionals squeezes = se_parameters(se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias);
  if (expand_weight) check_weight("expand_weight", *expand_weight, x);
  check_weight("dw_weight", dw_weight, x);
  check_weight("project_weight", project_weight, x);
  const std::array<BatchNorm, 3> norms = {expand_weight ? BatchNorm("expand_bn", expand_bn) : BatchNorm(),
                                          BatchNorm("dw_bn", dw_bn), BatchNorm("project_bn", project_bn)};
  const std::array<const Tensor*, 3> weights = {expand_weight ? &*expand_weight : nullptr, &dw_weight, &project_weight};
  const std::array<double, 3> epsilons = three_of("eps", eps);
  std::array<std::optional<double>, 3> momenta;
  if (momentum) std::ranges::copy(three_of("momentum", *momentum), momenta.begin());

  TensorOptionals bn_parameters, running, counters;
  const std::size_t first = expand_weight ? 0 : 1;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    bn_parameters.push_back(norms[i].weight);
    bn_parameters.push_back(norms[i].bias);
    if (i < first) continue;
    norms[i].running.check(x, weights[i]->sym_size(0), training, momenta[i]);
    if (training || !norms[i].running.mean) continue;
    check_batch_norm_parameters(i, norms[i].weight, norms[i].bias, x, weights[i]->sym_size(0));
    for (const OptionalTensor& vector : {norms[i].weight, norms[i].bias, norms[i].running.mean, norms[i].running.var}) {
      running.push_back(vector);
    }
    counters.push_back(norms[i].running.num_batches_tracked);
  }
  check(running.empty() || running.size() == 4 * (norms.size() - first),
        "running_mean: some of the BatchNorms have running statistics and others do not; give all or none");

  OptionalTensor statistics;
  if (!running.empty()) statistics = fold_running(running, counters, at::ArrayRef<double>(epsilons).slice(first), x);
  note_parameters(expand_weight, dw_weight, project_weight, se_reduce_weight, se_reduce_bias, se_expand_weight,
                  se_expand_bias);
  const bool keep = will_differentiate(x, expand_weight, dw_weight, project_weight, norms[0].weight, norms[0].bias,
                                       norms[1].weight, norms[1].bias, norms[2].weight, norms[2].bias, se_reduce_weight,
                                       se_reduce_bias, se_expand_weight, se_expand_bias);
  const BlockLayout layout(x, dw_weight, project_weight,
                           {.window = window_of(dw_weight, stride, padding, dilation),
                            .expands = expand_weight.has_value(),
                            .differentiates = keep});
  const Tensor read_x = layout.inside(x);
  const bool recomputes = !keep || recompute.value_or(false);
  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  const auto [raw_y, batch_statistics] = [&]() -> Tensors2 {
    if (squeezes.empty()) {
      check_inverted_residual(x, geometry, bn_parameters, statistics, epsilons, activation, residual);
      const Chain chain(expand_weight, dw_weight, project_weight, bn_parameters, epsilons, activation, geometry.window,
                        residual);
      const auto outputs = chain.forward(read_x, statistics, recomputes);
      return {std::get<0>(outputs), std::get<1>(outputs)};
    }
    const auto outputs = gated_residual_forward(read_x, expand_weight, dw_weight, project_weight, bn_parameters,
                                                squeezes, statistics, epsilons, activation, se_activation, se_gate,
                                                stride, padding, dilation, residual, recomputes);
    return {std::get<0>(outputs), std::get<1>(outputs)};
  }();
  const Tensor y = layout.outside(raw_y);
  if (!training) return y;
  std::vector<RunningUpdate> updates;
  for (std::size_t i = first; i < norms.size(); ++i) {
    updates.push_back({norms[i].running, weights[i]->sym_size(0), momenta[i]});
  }
  update_running(batch_statistics, updates, x.sym_numel() == 0);
  return keep_open(y);
}

/// With squeeze-excite. Either half has the same implementations.
Explanation explanation_with_gate(const InvertedResidualOperands& operands, const InvertedResidualGeometry& geometry,
                                  std::string_view activation, bool residual, bool training) {
  const Tensor& x = operands.x;
  const Tensor y = empty_activation(geometry.y, x), d = empty_activation(geometry.d, x);
  const Tensor e = geometry.expands ? empty_activation(geometry.e, x) : Tensor();
  const Tensor gate = at::empty({d.size(0), d.size(1), 1, 1}, d.options());
  GatedResidualArguments gated;
  gated.block = operands.arguments(geometry.window, activation, residual, training);
  gated.block.e = mutable_view(e);
  gated.block.d = gated.z = mutable_view(d);
  gated.block.p = gated.block.y = mutable_view(y);
  gated.gate = view(gate);
  const ConvolutionGradients gradients = {x, operands.expand_weight, operands.dw_weight, operands.project_weight};
  GatedResidualBackwardArguments backward;
  backward.block = backward_arguments(gated.block, y, d, e, gradients, operands.bn_parameters);
  backward.gate = view(gate);
  backward.z = view(d);
  return explanation(explain_gated_residual_projection(gated), explain_gated_residual_projection_backward(backward));
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
  const auto geometry =
      inverted_residual_geometry(x, expand_weight, dw_weight, project_weight, stride, padding, dilation);
  const std::array<double, 3> eps = {1, 1, 1};  // of no consequence for the choice
  check_inverted_residual(x, geometry, bn_parameters, {}, eps, activation, residual);
  const bool batch_statistics = training || !dw_bn.get(2);
  const TensorOptionals squeezes = se_parameters(se_reduce_weight, se_reduce_bias, se_expand_weight, se_expand_bias);
  if (squeezes.empty()) {
    const Chain chain(expand_weight, dw_weight, project_weight, bn_parameters, eps, activation, geometry.window,
                      residual);
    return layout.explained(explanation_of_chain(x, chain.tensors(), chain.options, chain.eps, {}, batch_statistics));
  }
  SqueezeExcite(squeezes, se_activation, se_gate, x, geometry.d[1]);
  return layout.explained(
      explanation_with_gate(InvertedResidualOperands(x, expand_weight, dw_weight, project_weight, bn_parameters,
                                                     empty_statistics(x, geometry, {})),
                            geometry, activation, residual, batch_statistics));
}

void register_kernels(torch::Library& m) {
  m.impl("_explain_inverted_residual", translated<explain_inverted_residual_kernel>);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, CompositeImplicitAutograd, m) {
  m.impl("inverted_residual", translated<inverted_residual_composite>);
}

}  // namespace fusedsc::aten
