/// The public fused blocks: their functional cores, between reading and updating BatchNorm's running statistics.
/// Compositions, so that torch.compile sees a differentiable operator without side effects, and plain in-place ones.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "arguments.h"
#include "block_layout.h"
#include "conv_chain_operands.h"
#include "fusedsc/common/check_part.h"
#include "fusedsc/common/status.h"
#include "inverted_residual_operands.h"
#include "operators.h"
#include "running_statistics.h"
#include "squeeze_excite_gate.h"
#include "tensor_conversion.h"
#include "transforms.h"

namespace fusedsc::aten {
namespace {

bool requires_grad(const Tensor& tensor) { return tensor.requires_grad(); }
bool requires_grad(const OptionalTensor& tensor) { return tensor && tensor->requires_grad(); }
template <class Tensors>
bool any_requires_grad(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const OptionalTensor& tensor) { return requires_grad(tensor); });
}

/// Without a backward pass to come nothing needs to be kept for it.
template <class... Tensors>
bool will_differentiate(const Tensors&... tensors) {
  return at::GradMode::is_enabled() && (requires_grad(tensors) || ...);
}

/// The statistics of BatchNorms in eval mode. They are folded again at every call, and kept by no one: a CUDA graph that
/// is replayed after a weight or a running average has changed computes with what they are then.
Tensor folded(const TensorOptionals& batch_norms, at::ArrayRef<double> eps, const Tensor& x) {
  return fold_batch_norms(batch_norms, eps, accumulation_type(x.scalar_type()));
}

Tensor dsc_block_composite(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& bn_weight,
                           const OptionalTensor& bn_bias, const OptionalTensor& running_mean,
                           const OptionalTensor& running_var, const Tensor& pw_weight, const OptionalTensor& dw_bias,
                           const OptionalTensor& pw_bias, bool training, std::optional<double> momentum,
                           const OptionalTensor& num_batches_tracked, double eps, std::string_view activation,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::optional<bool> recompute,
                           std::int64_t groups, std::optional<double> overlap) {
  refuse_transforms("dsc_block", x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias);
  check_activation("x", x);
  check_weight("dw_weight", dw_weight, x);
  const RunningStatistics running{running_mean, running_var, num_batches_tracked};
  running.check(x, dw_weight.sym_size(0), training, momentum);

  OptionalTensor statistics;  // none: the batch's, which F.batch_norm takes in eval mode too if there are no others
  if (!training && running.mean) {
    check_batch_norm_vector("bn_weight", bn_weight, x, dw_weight.sym_size(0));
    check_batch_norm_vector("bn_bias", bn_bias, x, dw_weight.sym_size(0));
    statistics = folded({bn_weight, bn_bias, running.mean, running.var}, eps, x);
  }
  const bool differentiates = will_differentiate(x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias);
  if (!differentiates) recompute = true;
  const BlockLayout layout(x, dw_weight, pw_weight,
                           {.window = window_of(dw_weight, stride, padding, dilation),
                            .is_dense = groups == 1 && !overlap,
                            .differentiates = differentiates});
  const auto [y, batch_statistics, d] =
      dsc_block_forward(layout.inside(x), dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics, eps,
                        activation, stride, padding, dilation, recompute, groups, overlap);
  if (training) {
    update_running(batch_statistics, RunningUpdate{running, dw_weight.sym_size(0), momentum}, x.sym_numel() == 0);
    return keep_open(layout.outside(y));
  }
  return layout.outside(y);
}

Tensor conv_bn_act_composite(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                             const OptionalTensor& bn_bias, const OptionalTensor& running_mean,
                             const OptionalTensor& running_var, bool training, std::optional<double> momentum,
                             const OptionalTensor& num_batches_tracked, double eps, std::string_view activation,
                             IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  refuse_transforms("conv_bn_act", x, weight, bn_weight, bn_bias);
  check_activation("x", x);
  check_weight("weight", weight, x);
  const RunningStatistics running{running_mean, running_var, num_batches_tracked};
  running.check(x, weight.sym_size(0), training, momentum);

  OptionalTensor statistics;  // as above
  if (!training && running.mean) {
    check_batch_norm_vector("bn_weight", bn_weight, x, weight.sym_size(0));
    check_batch_norm_vector("bn_bias", bn_bias, x, weight.sym_size(0));
    statistics = folded({bn_weight, bn_bias, running.mean, running.var}, eps, x);
  }
  const auto [y, batch_statistics] =
      conv_bn_act_forward(x, weight, bn_weight, bn_bias, statistics, eps, activation, stride, padding, dilation);
  if (training) {
    update_running(batch_statistics, RunningUpdate{running, weight.sym_size(0), momentum}, x.sym_numel() == 0);
    return keep_open(y);
  }
  return y;
}

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

  TensorOptionals bn_parameters, running;
  const std::size_t first = expand_weight ? 0 : 1;
  std::size_t with_running = 0;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    bn_parameters.push_back(norms[i].weight);
    bn_parameters.push_back(norms[i].bias);
    if (i < first) continue;
    norms[i].running.check(x, weights[i]->sym_size(0), training, momenta[i]);
    if (training || !norms[i].running.mean) continue;
    check_batch_norm_parameters(i, norms[i].weight, norms[i].bias, x, weights[i]->sym_size(0));
    for (const OptionalTensor& vector :
         {norms[i].weight, norms[i].bias, norms[i].running.mean, norms[i].running.var}) {
      running.push_back(vector);
    }
    ++with_running;
  }
  check(with_running == 0 || with_running == norms.size() - first,
        "running_mean: some of the BatchNorms have running statistics and others do not; give all or none");

  OptionalTensor statistics;
  if (with_running > 0) statistics = folded(running, at::ArrayRef<double>(epsilons).slice(first), x);
  const bool keep = will_differentiate(x, expand_weight, dw_weight, project_weight, norms[0].weight, norms[0].bias,
                                       norms[1].weight, norms[1].bias, norms[2].weight, norms[2].bias, se_reduce_weight,
                                       se_reduce_bias, se_expand_weight, se_expand_bias);
  const BlockLayout layout(x, dw_weight, project_weight,
                           {.window = window_of(dw_weight, stride, padding, dilation),
                            .expands = expand_weight.has_value(),
                            .differentiates = keep});
  const Tensor read_x = layout.inside(x);
  const bool recomputes = !keep || recompute.value_or(false);
  const auto [raw_y, batch_statistics] = [&]() -> Tensors2 {
    if (squeezes.empty()) {
      const auto outputs =
          inverted_residual_forward(read_x, expand_weight, dw_weight, project_weight, bn_parameters, statistics,
                                    epsilons, activation, stride, padding, dilation, residual, recomputes);
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

Tensor conv_chain_composite(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                            const BoolList& has_bn, const TensorOptionals& bns, bool training,
                            at::ArrayRef<double> momenta, at::ArrayRef<double> eps, const StringList& activations,
                            IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
                            bool residual, const OptionalTensor& branch_scale, std::string_view input_activation,
                            std::optional<bool> recompute) {
  check_activation("x", x);
  check(bns.size() == 5 * weights.size(), "bns: it has ", bns.size(), " elements; give five for each of the ",
        weights.size(), " weights");
  check(momenta.size() == weights.size() && eps.size() == weights.size(), "momenta and eps: they have ", momenta.size(),
        " and ", eps.size(), " elements; give one for each of the ", weights.size(), " weights");
  check(!branch_scale || !requires_grad(*branch_scale),
        "branch_scale: it requires a gradient, which is not computed; detach it, or scale the result of a chain "
        "without it");
  TensorOptionals bn_parameters;
  for (std::size_t i = 0; i < bns.size(); ++i) {
    if (i % 5 < 2) bn_parameters.push_back(bns.get(i));
  }
  const ConvChainOptions options{has_bn,          activations,  strides.vec(), paddings.vec(),
                                 dilations.vec(), groups.vec(), residual,      std::string(input_activation)};
  check_list_sizes({weights, biases, bn_parameters}, options);

  std::vector<RunningUpdate> updates;
  TensorOptionals running;
  std::vector<double> running_eps;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    check_part("stages", i, [&] { check_weight("weight", weights[i], x); });
    if (!has_bn.get(i)) continue;
    const RunningStatistics own{bns.get(5 * i + 2), bns.get(5 * i + 3), bns.get(5 * i + 4)};
    const auto momentum = std::isnan(momenta[i]) ? std::nullopt : std::optional<double>(momenta[i]);
    check_part("stages", i, [&] { own.check(x, weights[i].sym_size(0), training, momentum); });
    updates.push_back({own, weights[i].sym_size(0), momentum});
    if (training || !own.mean) continue;
    for (const OptionalTensor& vector : {bns.get(5 * i), bns.get(5 * i + 1)}) {
      check_part("stages", i, [&] { check_batch_norm_vector("bn", vector, x, weights[i].sym_size(0)); });
    }
    for (std::size_t j = 0; j < 4; ++j) running.push_back(bns.get(5 * i + j));
    running_eps.push_back(eps[i]);
  }
  check(running_eps.empty() || running_eps.size() == updates.size(),
        "running_mean: some of the BatchNorms have running statistics and others do not; give all or none");
  OptionalTensor statistics;
  if (!running_eps.empty()) statistics = folded(running, running_eps, x);

  const bool differentiates =
      at::GradMode::is_enabled() &&
      (requires_grad(x) || any_requires_grad(weights) || any_requires_grad(biases) || any_requires_grad(bn_parameters));
  const BlockLayout layout = layout_of_chain(x, weights, options, differentiates);
  const auto [raw_y, batch_statistics, raw] = conv_chain_forward(
      layout.inside(x), weights, biases, has_bn, bn_parameters, statistics, eps, activations, strides, paddings,
      dilations, groups, residual, branch_scale, input_activation, !differentiates || recompute.value_or(false));
  if (!training || updates.empty()) return layout.outside(raw_y);
  update_running(batch_statistics, updates, x.sym_numel() == 0);
  return keep_open(layout.outside(raw_y));
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CompositeImplicitAutograd, m) {
  m.impl("dsc_block", dsc_block_composite);
  m.impl("conv_bn_act", conv_bn_act_composite);
  m.impl("inverted_residual", inverted_residual_composite);
  m.impl("conv_chain", conv_chain_composite);
}

}  // namespace fusedsc::aten
