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
#include "fusedsc/common/checks/check_part.h"
#include "fusedsc/common/status.h"
#include "kept_tensors.h"
#include "operators.h"
#include "running_statistics.h"
#include "tensor_conversion.h"
#include "transforms.h"
#include "translated.h"
#include "will_differentiate.h"

namespace fusedsc::aten {
namespace {

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
    statistics = fold_running({bn_weight, bn_bias, running.mean, running.var},
                              TensorOptionals({running.num_batches_tracked}), eps, x);
  }
  note_parameters(dw_weight, dw_bias, pw_weight, pw_bias);
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
    statistics = fold_running({bn_weight, bn_bias, running.mean, running.var},
                              TensorOptionals({running.num_batches_tracked}), eps, x);
  }
  note_parameters(weight);
  const auto [y, batch_statistics] =
      conv_bn_act_forward(x, weight, bn_weight, bn_bias, statistics, eps, activation, stride, padding, dilation);
  if (training) {
    update_running(batch_statistics, RunningUpdate{running, weight.sym_size(0), momentum}, x.sym_numel() == 0);
    return keep_open(y);
  }
  return y;
}

Tensor conv_chain_composite(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                            const BoolList& has_bn, const TensorOptionals& bns, bool training,
                            at::ArrayRef<double> momenta, at::ArrayRef<double> eps, const StringList& activations,
                            IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
                            bool residual, const OptionalTensor& branch_scale, std::string_view input_activation,
                            std::optional<bool> recompute, std::optional<std::string_view> sync_group,
                            std::int64_t sync_size) {
  return conv_chain_of_types(x, weights, biases, has_bn, bns, training, momenta, eps, activations, strides, paddings,
                             dilations, groups, residual, branch_scale, input_activation, recompute, sync_group,
                             sync_size, WeightTypes::of_x);
}

}  // namespace

Tensor conv_chain_of_types(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                           const BoolList& has_bn, const TensorOptionals& bns, bool training,
                           at::ArrayRef<double> momenta, at::ArrayRef<double> eps, const StringList& activations,
                           IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
                           bool residual, const OptionalTensor& branch_scale, std::string_view input_activation,
                           std::optional<bool> recompute, std::optional<std::string_view> sync_group,
                           std::int64_t sync_size, WeightTypes types) {
  refuse_transforms("conv_chain", x, weights, biases, bns);
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
  TensorOptionals running, counters;
  std::vector<double> running_eps;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    check_part("stages", i, [&] {
      check_weight("weight", weights[i], x, types);
      check_bias("bias", biases.get(i), x, weights[i].sym_size(0), types);
    });
    if (!has_bn.get(i)) continue;
    const RunningStatistics own{bns.get(5 * i + 2), bns.get(5 * i + 3), bns.get(5 * i + 4)};
    const auto momentum = std::isnan(momenta[i]) ? std::nullopt : std::optional<double>(momenta[i]);
    check_part("stages", i, [&] { own.check(x, weights[i].sym_size(0), training, momentum); });
    updates.push_back({own, weights[i].sym_size(0), momentum});
    if (training || !own.mean) continue;
    check_part("stages", i, [&] {
      check_batch_norm_vector("bn weight", bns.get(5 * i), x, weights[i].sym_size(0));
      check_batch_norm_vector("bn bias", bns.get(5 * i + 1), x, weights[i].sym_size(0));
    });
    for (std::size_t j = 0; j < 4; ++j) running.push_back(bns.get(5 * i + j));
    counters.push_back(own.num_batches_tracked);
    running_eps.push_back(eps[i]);
  }
  check(running_eps.empty() || running_eps.size() == updates.size(),
        "running_mean: some of the BatchNorms have running statistics and others do not; give all or none");
  OptionalTensor statistics;
  if (!running_eps.empty()) statistics = fold_running(running, counters, running_eps, x);

  const auto kept = kept_chain_casts(x, weights, biases);
  const bool differentiates = will_differentiate(x, weights, biases, bn_parameters);
  const BlockLayout layout = layout_of_chain(x, weights, options, differentiates);
  const auto [raw_y, batch_statistics, raw] = conv_chain_forward(
      layout.inside(x), kept ? kept->weights : weights, kept ? kept->biases : biases, has_bn, bn_parameters, statistics,
      eps, activations, strides, paddings, dilations, groups, residual, branch_scale, input_activation,
      !differentiates || recompute.value_or(false), sync_group, sync_size);
  if (!training || updates.empty()) return layout.outside(raw_y);
  update_running(batch_statistics, updates, !sync_group && x.sym_numel() == 0);
  return keep_open(layout.outside(raw_y));
}

TORCH_LIBRARY_IMPL(fusedsc, CompositeImplicitAutograd, m) {
  m.impl("dsc_block", translated<dsc_block_composite>);
  m.impl("conv_bn_act", translated<conv_bn_act_composite>);
  m.impl("conv_chain", translated<conv_chain_composite>);
}

}  // namespace fusedsc::aten
