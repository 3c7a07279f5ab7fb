/// Gradients of chains of convolutions.
#include <torch/library.h>

#include <vector>

#include "autograd.h"
#include "conv_chain_operands.h"
#include "transforms.h"
#include "translated.h"

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

/// The same, as the operators take them.
struct Operands {
  Tensor x;
  std::vector<Tensor> weights;
  TensorOptionals biases, bn_parameters;

  /// Of undefined tensors where there is none.
  Operands(const variable_list& all, std::size_t stages) : x(all[0]) {
    for (std::size_t i = 0; i < stages; ++i) {
      weights.push_back(all[1 + 4 * i]);
      biases.push_back(or_none(all[2 + 4 * i]));
      bn_parameters.push_back(or_none(all[3 + 4 * i]));
      bn_parameters.push_back(or_none(all[4 + 4 * i]));
    }
  }
};

/// What a call consists of besides what it is differentiated by.
struct Call {
  ConvChainOptions options;
  std::vector<double> eps;
  bool recompute;
  std::optional<std::string> sync_group;
  std::int64_t sync_size;

  std::tuple<Tensor, Tensor, std::vector<Tensor>> forward(const Operands& operands, const OptionalTensor& statistics,
                                                          const OptionalTensor& branch_scale, bool recomputes) const {
    const ConvChainOptions& o = options;
    return conv_chain_forward(operands.x, operands.weights, operands.biases, o.has_bn, operands.bn_parameters,
                              statistics, eps, o.activations, o.strides, o.paddings, o.dilations, o.groups, o.residual,
                              branch_scale, o.input_activation, recomputes, sync_group, sync_size);
  }

  void save(AutogradContext* context) const {
    auto& saved = context->saved_data;
    saved["has_bn"] = options.has_bn;
    saved["activations"] = options.activations;
    saved["strides"] = options.strides;
    saved["paddings"] = options.paddings;
    saved["dilations"] = options.dilations;
    saved["groups"] = options.groups;
    saved["residual"] = options.residual;
    saved["input_activation"] = options.input_activation;
    saved["eps"] = eps;
    saved["recompute"] = recompute;
    saved["sync_group"] = sync_group;
    saved["sync_size"] = sync_size;
  }
  static Call saved(AutogradContext* context) {
    auto& saved = context->saved_data;
    return {{saved["has_bn"].toBoolList(), saved["activations"].to<StringList>(), saved["strides"].toIntVector(),
             saved["paddings"].toIntVector(), saved["dilations"].toIntVector(), saved["groups"].toIntVector(),
             saved["residual"].toBool(), saved["input_activation"].toStringRef()},
            saved["eps"].toDoubleVector(),
            saved["recompute"].toBool(),
            saved["sync_group"].toOptional<std::string>(),
            saved["sync_size"].toInt()};
  }
};

struct ConvChain : torch::autograd::Function<ConvChain> {
  /// `given` are those of `all` that there are: autograd is told of these.
  static variable_list forward(AutogradContext* context, at::TensorList /*given*/, const variable_list& all,
                               const OptionalTensor& statistics, const OptionalTensor& branch_scale, const Call& call) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Operands operands(all, call.options.stages());
    const auto [y, batch_statistics, raw] = call.forward(operands, statistics, branch_scale, call.recompute);
    variable_list results = {y, batch_statistics};
    results.insert(results.end(), raw.begin(), raw.end());
    context->set_materialize_grads(false);
    context->mark_non_differentiable({results.begin() + 1, results.end()});
    variable_list kept = all;
    kept.push_back(statistics.value_or(batch_statistics));
    kept.push_back(or_undefined(branch_scale));
    kept.insert(kept.end(), raw.begin(), raw.end());
    context->save_for_backward(kept);
    context->saved_data["training"] = !statistics.has_value();
    call.save(context);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const Call call = Call::saved(context);
    const std::size_t count = 1 + 4 * call.options.stages();
    const auto saved = context->get_saved_variables();
    std::size_t edges = 0;
    BoolList output_mask;
    for (std::size_t i = 0; i < count; ++i) {
      output_mask.push_back(saved[i].defined() && context->needs_input_grad(edges));
      edges += saved[i].defined();
    }
    constexpr std::size_t kOthers = 4;
    variable_list gradients(edges + kOthers);
    if (!grad_outputs[0].defined()) return gradients;

    const Operands operands(saved, call.options.stages());
    const Tensor& statistics = saved[count];
    const OptionalTensor branch_scale = or_none(saved[count + 1]);
    std::vector<Tensor> raw(saved.begin() + static_cast<std::ptrdiff_t>(count) + 2, saved.end());
    if (call.recompute) {
      // With its statistics given, the forward pass repeats the same arithmetic.
      raw = std::get<2>(call.forward(operands, statistics, branch_scale, /*recomputes=*/false));
    }
    const ConvChainOptions& o = call.options;
    const auto wanted = conv_chain_backward(
        grad_outputs[0], operands.x, operands.weights, operands.biases, o.has_bn, operands.bn_parameters, statistics,
        raw, context->saved_data["training"].toBool(), o.activations, o.strides, o.paddings, o.dilations, o.groups,
        o.residual, branch_scale, o.input_activation, output_mask, call.sync_group, call.sync_size);
    std::size_t next = 0, edge = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (output_mask.get(i)) gradients[edge] = wanted[next++];
      edge += saved[i].defined();
    }
    return gradients;
  }
};

std::tuple<Tensor, Tensor, std::vector<Tensor>> conv_chain_forward_autograd(
    const Tensor& x, at::TensorList weights, const TensorOptionals& biases, const BoolList& has_bn,
    const TensorOptionals& bn_parameters, const OptionalTensor& statistics, at::ArrayRef<double> eps,
    const StringList& activations, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations, IntArrayRef groups,
    bool residual, const OptionalTensor& branch_scale, std::string_view input_activation, bool recompute,
    std::optional<std::string_view> sync_group, std::int64_t sync_size) {
  refuse_transforms("conv_chain", x, weights, biases, bn_parameters);
  const Call call{{has_bn, activations, strides.vec(), paddings.vec(), dilations.vec(), groups.vec(), residual,
                   std::string(input_activation)},
                  eps.vec(),
                  recompute,
                  sync_group ? std::optional<std::string>(*sync_group) : std::nullopt,
                  sync_size};
  const ConvChainTensors tensors{weights, biases, bn_parameters};
  check_list_sizes(tensors, call.options);
  variable_list all, given;
  for (const OptionalTensor& tensor : differentiable(x, tensors)) {
    all.push_back(or_undefined(tensor));
    if (tensor) given.push_back(*tensor);
  }
  const auto outputs = ConvChain::apply(at::TensorList(given), all, statistics, branch_scale, call);
  return {outputs[0], outputs[1], {outputs.begin() + 2, outputs.end()}};
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
