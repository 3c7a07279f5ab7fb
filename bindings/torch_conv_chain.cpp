/// Chains of depthwise and pointwise convolutions with BatchNorms and activations: their functional core.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conv_chain_operands.h"
#include "explain.h"
#include "group_merge.h"
#include "joined_tensors.h"
#include "new_tensor.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

using Outputs = std::tuple<Tensor, Tensor, std::vector<Tensor>>;

ConvChainOptions options_of(const BoolList& has_bn, const StringList& activations, IntArrayRef strides,
                            IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups, bool residual,
                            std::string_view input_activation) {
  return {has_bn,          activations,  strides.vec(), paddings.vec(),
          dilations.vec(), groups.vec(), residual,      std::string(input_activation)};
}

/// Those that backward reads, and behind them what is cast, if anything is.
std::vector<Tensor> empty_raw(const Tensor& x, const ConvChainTensors& tensors, const ConvChainOptions& options,
                              const std::vector<SymSizes>& sizes) {
  std::vector<Tensor> raw;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (options.reads_raw(i)) raw.push_back(empty_activation(sizes[i], x));
  }
  const ConvChainCasts casts(x, tensors);
  if (casts.elements > 0) raw.push_back(new_tensor({casts.elements}, x, x.scalar_type()));
  return raw;
}

Outputs empty_outputs(const Tensor& x, const ConvChainTensors& tensors, const OptionalTensor& statistics,
                      at::ArrayRef<double> eps, const OptionalTensor& branch_scale, const ConvChainOptions& options,
                      bool recompute, std::int64_t processes = 1) {
  check_list_sizes(tensors, options);
  const auto sizes = conv_chain_sizes(x, tensors, options);
  check_conv_chain(x, options, sizes, statistics, eps, branch_scale, processes);
  const at::ScalarType vectors = accumulation_type(x.scalar_type());
  const Tensor batch_statistics =
      statistics ? new_tensor({0}, x, vectors) : new_tensor({5, channels_of_batch_norms(options, sizes)}, x, vectors);
  return {empty_activation(sizes.back(), x), batch_statistics,
          recompute ? std::vector<Tensor>() : empty_raw(x, tensors, options, sizes)};
}

/// What puts a batch's statistics together that are spread over the processes of a group; null where there is none.
std::unique_ptr<GroupMerge> merge_of(const ConvChainArguments& chain, const Tensor& x, bool training,
                                     std::optional<std::string_view> sync_group, std::int64_t sync_size) {
  if (!training || !sync_group) return nullptr;
  std::vector<std::int64_t> counts;
  for (const Sizes& sizes : conv_chain_sizes(chain)) counts.push_back(sizes[0] * sizes[2] * sizes[3]);
  return std::make_unique<GroupMerge>(std::string(*sync_group), sync_size, std::move(counts), x);
}

Outputs conv_chain_forward_meta(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                                const BoolList& has_bn, const TensorOptionals& bn_parameters,
                                const OptionalTensor& statistics, at::ArrayRef<double> eps,
                                const StringList& activations, IntArrayRef strides, IntArrayRef paddings,
                                IntArrayRef dilations, IntArrayRef groups, bool residual,
                                const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute,
                                std::optional<std::string_view> /*sync_group*/, std::int64_t sync_size,
                                bool /*repeats*/) {
  const ConvChainOptions options =
      options_of(has_bn, activations, strides, paddings, dilations, groups, residual, input_activation);
  return empty_outputs(x, {weights, biases, bn_parameters}, statistics, eps, branch_scale, options, recompute,
                       sync_size);
}

Outputs conv_chain_forward_kernel(const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
                                  const BoolList& has_bn, const TensorOptionals& bn_parameters,
                                  const OptionalTensor& statistics, at::ArrayRef<double> eps,
                                  const StringList& activations, IntArrayRef strides, IntArrayRef paddings,
                                  IntArrayRef dilations, IntArrayRef groups, bool residual,
                                  const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute,
                                  std::optional<std::string_view> sync_group, std::int64_t sync_size, bool repeats) {
  const ConvChainOptions options =
      options_of(has_bn, activations, strides, paddings, dilations, groups, residual, input_activation);
  const ConvChainTensors tensors{weights, biases, bn_parameters};
  const Outputs outputs = empty_outputs(x, tensors, statistics, eps, branch_scale, options, recompute, sync_size);
  const auto& [y, batch_statistics, raw] = outputs;
  const c10::DeviceGuard guard(x.device());
  ConvChainOperands operands(x, tensors, statistics.value_or(batch_statistics), branch_scale, options, raw,
                             are_folded(statistics) && !repeats);
  operands.cast();
  const bool training = !statistics;
  ConvChainArguments arguments = operands.arguments(options, training);
  arguments.repeats_training = repeats;
  for (std::size_t i = 0; i < arguments.stages.size(); ++i) {
    if (arguments.stages[i].bn) arguments.stages[i].bn->eps = eps[i];
  }
  if (y.numel() == 0) {
    for (const Tensor& tensor : raw) tensor.zero_();
    y.zero_();
    batch_statistics.zero_();
    if (!training || !sync_group) return outputs;
    const GroupMerge merge(std::string(*sync_group), sync_size, {}, x);
    for (const ConvStage& stage : arguments.stages) {
      if (stage.bn) merge.statistics_of_nothing(*stage.bn);
    }
    return outputs;
  }
  const auto merge = merge_of(arguments, operands.x, training || repeats, sync_group, sync_size);
  if (merge) arguments.merge = &merge->hooks();
  arguments.y = mutable_view(y);
  run(plan_conv_chain, arguments, x);
  return outputs;
}

/// The parameters whose gradients are wanted: of each stage's weight, bias, and BatchNorm's weight and bias.
std::vector<Tensor> wanted_parameters(const ConvChainTensors& tensors, const BoolList& output_mask) {
  const std::size_t stages = tensors.weights.size();
  check(output_mask.size() == 1 + 4 * stages, "output_mask: it has ", output_mask.size(),
        " elements; give one for x and four for each of the ", stages, " weights");
  std::vector<Tensor> wanted;
  wanted.reserve(4 * stages);
  for (std::size_t i = 0; i < stages; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      if (!output_mask.get(1 + 4 * i + j)) continue;
      const OptionalTensor parameter = j == 0   ? tensors.weights[i]
                                       : j == 1 ? tensors.biases.get(i)
                                                : tensors.bn_parameters.get(2 * i + j - 2);
      check(parameter.has_value(), "output_mask: it asks for the gradient of a parameter of stage ", i,
            " that is None");
      wanted.push_back(*parameter);
    }
  }
  return wanted;
}

void check_backward(const Tensor& grad_y, const Tensor& x, const ConvChainTensors& tensors,
                    const ConvChainOptions& options) {
  check_list_sizes(tensors, options);
  check_gradient(grad_y, conv_chain_sizes(x, tensors, options).back(), x);
}

/// Those that are wanted: of x, then of the parameters.
std::vector<Tensor> conv_chain_backward_meta(
    const Tensor& grad_y, const Tensor& x, at::TensorList weights, const TensorOptionals& biases,
    const BoolList& has_bn, const TensorOptionals& bn_parameters, const Tensor& /*statistics*/, at::TensorList /*raw*/,
    bool /*training*/, const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
    IntArrayRef groups, bool residual, const OptionalTensor& /*branch_scale*/, std::string_view input_activation,
    const BoolList& output_mask, std::optional<std::string_view> /*sync_group*/, std::int64_t /*sync_size*/) {
  const ConvChainTensors tensors{weights, biases, bn_parameters};
  check_backward(grad_y, x, tensors,
                 options_of(has_bn, activations, strides, paddings, dilations, groups, residual, input_activation));
  std::vector<Tensor> gradients;
  if (output_mask.get(0)) gradients.push_back(empty_activation(x.sym_sizes(), x));
  for (const Tensor& parameter : wanted_parameters(tensors, output_mask)) gradients.push_back(new_like(parameter));
  return gradients;
}

/// In the sums of a batch of which this process has nothing: those that the library asks for, in its order.
void take_part(const GroupMerge& merge, at::TensorList weights, const BoolList& has_bn, const BoolList& output_mask) {
  std::vector<std::int64_t> channels;
  bool wanted = output_mask.get(0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    for (std::size_t j = 1; j <= 4; ++j) wanted = wanted || output_mask.get(4 * i + j);
    if (wanted && has_bn.get(i)) channels.push_back(weights[i].size(0));
  }
  for (auto own = channels.rbegin(); own != channels.rend(); ++own) merge.gradient_of_nothing(*own);
}

std::vector<Tensor> conv_chain_backward_kernel(const Tensor& grad_y, const Tensor& x, at::TensorList weights,
                                               const TensorOptionals& biases, const BoolList& has_bn,
                                               const TensorOptionals& bn_parameters, const Tensor& statistics,
                                               at::TensorList raw, bool training, const StringList& activations,
                                               IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                                               IntArrayRef groups, bool residual, const OptionalTensor& branch_scale,
                                               std::string_view input_activation, const BoolList& output_mask,
                                               std::optional<std::string_view> sync_group, std::int64_t sync_size) {
  const ConvChainTensors tensors{weights, biases, bn_parameters};
  const ConvChainOptions options =
      options_of(has_bn, activations, strides, paddings, dilations, groups, residual, input_activation);
  check_backward(grad_y, x, tensors, options);
  const std::vector<Tensor> parameters = wanted_parameters(tensors, output_mask);
  const c10::DeviceGuard guard(x.device());
  std::vector<Tensor> gradients;
  gradients.reserve(1 + parameters.size());
  if (output_mask.get(0)) gradients.push_back(empty_activation(x.sym_sizes(), x));
  for (Tensor& gradient : joined_like(parameters)) gradients.push_back(std::move(gradient));
  if (grad_y.numel() == 0) {
    for (const Tensor& gradient : gradients) gradient.zero_();
    if (training && sync_group) {
      take_part(GroupMerge(std::string(*sync_group), sync_size, {}, x), weights, has_bn, output_mask);
    }
    return gradients;
  }
  const ConvChainOperands operands(x, tensors, statistics, branch_scale, options, raw);
  const Tensor grad_y_ = addressable(grad_y);
  ConvChainBackwardArguments arguments;
  arguments.forward = operands.arguments(options, training);
  arguments.grad_y = view(grad_y_);
  arguments.stages.resize(weights.size());
  auto next = gradients.begin();
  std::vector<std::pair<Tensor, Tensor>> written;  // of BatchNorms, and where they belong
  std::vector<JoinedPiece> cast;  // gradients of what forward cast: the kernels write them where forward had those
  const ConvChainCasts& casts = operands.casts;
  const Tensor joined = casts.elements > 0 ? new_tensor({casts.elements}, x, x.scalar_type()) : Tensor();
  const auto view_of = [&](const Tensor& gradient, std::int64_t place) {
    if (place == ConvChainCasts::kAsItIs) return mutable_elements(gradient);
    cast.push_back({gradient, place});
    return joined_view(joined, place, elements(gradient));
  };
  if (output_mask.get(0)) arguments.grad_x = mutable_view(*next++);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ConvStageGradients& stage = arguments.stages[i];
    if (output_mask.get(1 + 4 * i)) {
      const Tensor& gradient = *next++;
      stage.weight = mutable_view(gradient);
      const TensorView memory = view_of(gradient, casts.weights[i]);
      stage.weight.data = memory.data;
      stage.weight.dtype = memory.dtype;
    }
    if (output_mask.get(2 + 4 * i)) {
      const TensorView memory = view_of(*next++, casts.biases[i]);
      stage.bias = {memory.data, memory.dtype, memory.sizes[3], memory.device};
    }
    for (const std::size_t j : {0, 1}) {
      if (!output_mask.get(3 + 4 * i + j)) continue;
      written.emplace_back(accumulator_for(*next, statistics.scalar_type()), *next);
      (j == 0 ? stage.bn.weight : stage.bn.bias) = mutable_channels(written.back().first);
      ++next;
    }
  }
  const auto merge = merge_of(arguments.forward, operands.x, training, sync_group, sync_size);
  if (merge) arguments.forward.merge = &merge->hooks();
  run(plan_conv_chain_backward, arguments, x);
  for (const auto& [accumulator, gradient] : written) store(accumulator, gradient);
  if (!cast.empty()) cast_out_of(joined, cast);
  return gradients;
}

Explanation explain_conv_chain_kernel(const Tensor& given_x, at::TensorList weights, const TensorOptionals& biases,
                                      const BoolList& has_bn, const TensorOptionals& bns, bool training,
                                      at::ArrayRef<double> /*momenta*/, at::ArrayRef<double> eps,
                                      const StringList& activations, IntArrayRef strides, IntArrayRef paddings,
                                      IntArrayRef dilations, IntArrayRef groups, bool residual,
                                      const OptionalTensor& branch_scale, std::string_view input_activation,
                                      std::optional<bool> /*recompute*/, std::optional<std::string_view> /*sync_group*/,
                                      std::int64_t /*sync_size*/) {
  const ConvChainOptions options =
      options_of(has_bn, activations, strides, paddings, dilations, groups, residual, input_activation);
  TensorOptionals bn_parameters;
  for (std::size_t i = 0; i < bns.size(); ++i) {
    if (i % 5 < 2) bn_parameters.push_back(bns.get(i));
  }
  const ConvChainTensors tensors{weights, biases, bn_parameters};
  check_list_sizes(tensors, options);
  const BlockLayout layout = layout_of_chain(given_x, weights, options, training);
  return layout.explained(
      explanation_of_chain(layout.empty_inside(given_x), tensors, options, eps, branch_scale, training));
}

void register_kernels(torch::Library& m) {
  m.impl("_conv_chain_forward", translated<conv_chain_forward_kernel>);
  m.impl("_conv_chain_backward", translated<conv_chain_backward_kernel>);
  m.impl("_explain_conv_chain", translated<explain_conv_chain_kernel>);
}

}  // namespace

Explanation explanation_of_chain(const Tensor& x, const ConvChainTensors& tensors, const ConvChainOptions& options,
                                 at::ArrayRef<double> eps, const OptionalTensor& branch_scale, bool training) {
  const auto [y, statistics, raw] = empty_outputs(x, tensors, {}, eps, branch_scale, options, /*recompute=*/false);
  const ConvChainOperands operands(x, tensors, statistics, branch_scale, options, raw);
  ConvChainBackwardArguments backward;
  backward.forward = operands.arguments(options, training);
  backward.forward.y = mutable_view(y);
  backward.grad_y = view(y);
  backward.grad_x = mutable_view(operands.x);
  backward.stages.resize(tensors.weights.size());
  ConvChainArguments forward = backward.forward;
  for (ConvStage& stage : forward.stages) {
    if (!training) stage.raw = {};
  }
  const c10::DeviceGuard guard(x.device());
  const int threads = execution_on(x.device()).threads;
  return explanation(explain_conv_chain(forward, threads), explain_conv_chain_backward(backward, threads));
}

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(fusedsc, Meta, m) {
  m.impl("_conv_chain_forward", translated<conv_chain_forward_meta>);
  m.impl("_conv_chain_backward", translated<conv_chain_backward_meta>);
}

}  // namespace fusedsc::aten
