/// Gradients of chains of convolutions.
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd.h"
#include "conv_chain_operands.h"
#include "joined_tensors.h"
#include "transforms.h"
#include "translated.h"
#include "will_differentiate.h"

namespace fusedsc::aten {
namespace {

/// What a chain can be differentiated by: x, then each stage's weight, bias, and BatchNorm's weight and bias.
std::vector<OptionalTensor> differentiable(const Tensor& x, const ConvChainTensors& tensors) {
  std::vector<OptionalTensor> all = {x};
  for (std::size_t i = 0; i < tensors.weights.size(); ++i) {
    all.emplace_back(tensors.weights[i]);
    for (const OptionalTensor& parameter :
         {tensors.biases.get(i), tensors.bn_parameters.get(2 * i), tensors.bn_parameters.get(2 * i + 1)}) {
      all.push_back(parameter);
    }
  }
  return all;
}

/// What a call consists of besides its tensors.
struct Call {
  ConvChainOptions options;
  std::vector<double> eps;
  bool training, recompute;
  std::optional<std::string> sync_group;
  std::int64_t sync_size;
};

/// Backward of one call. A node of its own, and not a torch::autograd::Function, which keeps a dictionary of what is no
/// tensor, and takes longer over that than over the rest.
class ConvChainBackward : public torch::autograd::Node {
 public:
  ConvChainBackward(Call call, const std::vector<OptionalTensor>& differentiable) : call_(std::move(call)) {
    torch::autograd::edge_list edges;
    edges.reserve(differentiable.size());
    for (const OptionalTensor& tensor : differentiable) {
      edges.push_back(tensor ? torch::autograd::impl::gradient_edge(*tensor) : torch::autograd::Edge());
    }
    set_next_edges(std::move(edges));
  }

  /// What backward reads, in the order of conv_chain_backward's arguments.
  void save(const std::vector<OptionalTensor>& differentiable, const Tensor& statistics,
            const OptionalTensor& branch_scale, at::TensorList raw) {
    saved_.reserve(differentiable.size() + 2 + raw.size());
    for (const OptionalTensor& tensor : differentiable) saved_.emplace_back(tensor, false);
    saved_.emplace_back(statistics, false);
    saved_.emplace_back(branch_scale, false);
    for (const Tensor& tensor : raw) saved_.emplace_back(tensor, false);
  }

  variable_list apply(variable_list&& grad_outputs) override {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!is_released_, torch::autograd::ERR_BACKWARD_TWICE);
    const std::size_t stages = call_.options.stages(), count = 1 + 4 * stages;
    variable_list gradients(count);
    if (!grad_outputs[0].defined()) return gradients;
    auto next = saved_.begin();
    const auto unpacked = [&] { return (next++)->unpack(); };
    const Tensor x = unpacked();
    std::vector<Tensor> weights;
    weights.reserve(stages);
    TensorOptionals biases, bn_parameters;
    for (std::size_t i = 0; i < stages; ++i) {
      weights.push_back(unpacked());
      biases.push_back(or_none(unpacked()));
      for (int j = 0; j < 2; ++j) bn_parameters.push_back(or_none(unpacked()));
    }
    const Tensor statistics = unpacked();
    const OptionalTensor branch_scale = or_none(unpacked());
    std::vector<Tensor> raw;
    while (next != saved_.end()) raw.push_back(unpacked());

    const ConvChainOptions& o = call_.options;
    if (call_.recompute) {
      // With its statistics given, the forward pass repeats the same arithmetic.
      raw = std::get<2>(conv_chain_forward(x, weights, biases, o.has_bn, bn_parameters, statistics, call_.eps,
                                           o.activations, o.strides, o.paddings, o.dilations, o.groups, o.residual,
                                           branch_scale, o.input_activation, /*recompute=*/false, call_.sync_group,
                                           call_.sync_size, /*repeats=*/call_.training));
    }
    BoolList output_mask;
    output_mask.reserve(count);
    for (std::size_t i = 0; i < count; ++i) output_mask.push_back(task_should_compute_output(i));
    const SharedAllocations shared;
    std::vector<Tensor> wanted =
        conv_chain_backward(grad_outputs[0], x, weights, biases, o.has_bn, bn_parameters, statistics, raw,
                            call_.training, o.activations, o.strides, o.paddings, o.dilations, o.groups, o.residual,
                            branch_scale, o.input_activation, output_mask, call_.sync_group, call_.sync_size);
    // Moved: a gradient that anyone else holds is copied where it is accumulated.
    auto result = wanted.begin();
    for (std::size_t i = 0; i < count; ++i) {
      if (output_mask.get(i)) gradients[i] = std::move(*result++);
    }
    return gradients;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    saved_.clear();
    is_released_ = true;
  }

  std::string name() const override { return "ConvChainBackward"; }

 private:
  Call call_;
  std::vector<torch::autograd::SavedVariable> saved_;
  bool is_released_ = false;
};

std::tuple<Tensor, Tensor, std::vector<Tensor>> conv_chain_forward_autograd(
    const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
    const TensorOptionals& bn_parameters, const OptionalTensor& statistics, at::ArrayRef<double> eps,
    const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
    bool residual, const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute,
    std::optional<std::string_view> sync_group, std::int64_t sync_size, bool repeats) {
  refuse_transforms("conv_chain", x, weights, biases, bn_parameters);
  auto outputs = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return conv_chain_forward(x, weights, biases, has_bn, bn_parameters, statistics, eps, activations, strides,
                              paddings, dilations, groups, residual, branch_scale, input_activation, recompute,
                              sync_group, sync_size, repeats);
  }();
  if (!will_differentiate(x, weights, biases, bn_parameters)) return outputs;
  const auto& [y, batch_statistics, raw] = outputs;
  const auto inputs = differentiable(x, {weights, biases, bn_parameters});
  Call call{{has_bn, activations, strides.vec(), paddings.vec(), dilations.vec(), groups.vec(), residual,
             std::string(input_activation)},
            eps.vec(),
            /*training=*/!statistics,
            recompute,
            sync_group ? std::optional<std::string>(*sync_group) : std::nullopt,
            sync_size};
  const auto node = make_node<ConvChainBackward>(std::move(call), inputs);
  torch::autograd::set_history(y, node);
  static_cast<ConvChainBackward&>(*node).save(inputs, statistics.value_or(batch_statistics), branch_scale, raw);
  return outputs;
}

std::vector<Tensor> conv_chain_backward_autograd(const Tensor& grad_y, const Tensor& x, at::TensorList weights,
                                                 const TensorOptionals& biases, const BoolList& has_bn,
                                                 const TensorOptionals& bn_parameters, const Tensor& statistics,
                                                 at::TensorList raw, bool training, const StringList& activations,
                                                 IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                                                 IntArrayRef groups, bool residual, const OptionalTensor& branch_scale,
                                                 std::string_view input_activation, const BoolList& output_mask,
                                                 std::optional<std::string_view> sync_group, std::int64_t sync_size) {
  refuse_transforms("conv_chain's gradient", grad_y, x, weights, biases, bn_parameters);
  const auto gradients = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return conv_chain_backward(grad_y, x, weights, biases, has_bn, bn_parameters, statistics, raw, training,
                               activations, strides, paddings, dilations, groups, residual, branch_scale,
                               input_activation, output_mask, sync_group, sync_size);
  }();
  if (!at::GradMode::is_enabled()) return gradients;
  variable_list inputs = {grad_y};
  for (const OptionalTensor& tensor : differentiable(x, {weights, biases, bn_parameters})) {
    inputs.push_back(or_undefined(tensor));
  }
  forbid_double_backward("conv_chain", inputs, gradients);
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("_conv_chain_forward", translated<conv_chain_forward_autograd>);
  m.impl("_conv_chain_backward", translated<conv_chain_backward_autograd>);
}

}  // namespace fusedsc::aten
