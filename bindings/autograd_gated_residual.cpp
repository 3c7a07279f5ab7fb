/// Gradients of the inverted residual with squeeze-excite.
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <vector>

#include "autograd.h"
#include "operators.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// The block's arguments besides its tensors.
struct Options {
  std::vector<double> eps;
  std::string activation;
  std::vector<std::int64_t> stride, padding, dilation;
  bool residual, recompute;
  std::string se_activation, se_gate;
  bool repeats = false;  ///< of a call of backward, which nothing is differentiated by: not saved

  void save(AutogradContext* context) const {
    auto& saved = context->saved_data;
    saved["eps"] = eps;
    saved["activation"] = activation;
    saved["stride"] = stride;
    saved["padding"] = padding;
    saved["dilation"] = dilation;
    saved["residual"] = residual;
    saved["recompute"] = recompute;
    saved["se_activation"] = se_activation;
    saved["se_gate"] = se_gate;
  }
  static Options saved(AutogradContext* context) {
    auto& saved = context->saved_data;
    return {saved["eps"].toDoubleVector(),  saved["activation"].toStringRef(),    saved["stride"].toIntVector(),
            saved["padding"].toIntVector(), saved["dilation"].toIntVector(),      saved["residual"].toBool(),
            saved["recompute"].toBool(),    saved["se_activation"].toStringRef(), saved["se_gate"].toStringRef()};
  }
};

/// x, the three convolutions' weights, weight and bias of three BatchNorms and of the gate's two convolutions.
constexpr std::size_t kInputs = 14;

struct GatedResidual : torch::autograd::Function<GatedResidual> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalTensor& expand_weight,
                               const Tensor& dw_weight, const Tensor& project_weight, const OptionalTensor& weight0,
                               const OptionalTensor& bias0, const OptionalTensor& weight1, const OptionalTensor& bias1,
                               const OptionalTensor& weight2, const OptionalTensor& bias2,
                               const OptionalTensor& se_weight0, const OptionalTensor& se_bias0,
                               const OptionalTensor& se_weight1, const OptionalTensor& se_bias1,
                               const OptionalTensor& statistics, const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto outputs = gated_residual_forward(
        x, expand_weight, dw_weight, project_weight, TensorOptionals({weight0, bias0, weight1, bias1, weight2, bias2}),
        TensorOptionals({se_weight0, se_bias0, se_weight1, se_bias1}), statistics, options.eps, options.activation,
        options.se_activation, options.se_gate, options.stride, options.padding, options.dilation, options.residual,
        options.recompute, options.repeats);
    const variable_list results = std::apply([](const auto&... tensor) { return variable_list{tensor...}; }, outputs);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({results.begin() + 1, results.end()});
    variable_list kept = {x, or_undefined(expand_weight), dw_weight, project_weight};
    for (const OptionalTensor* parameter :
         {&weight0, &bias0, &weight1, &bias1, &weight2, &bias2, &se_weight0, &se_bias0, &se_weight1, &se_bias1}) {
      kept.push_back(or_undefined(*parameter));
    }
    kept.push_back(statistics.value_or(results[1]));
    kept.insert(kept.end(), results.begin() + 2, results.end());
    context->save_for_backward(kept);
    context->saved_data["training"] = !statistics.has_value();
    options.save(context);
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    variable_list gradients(kInputs + 2);
    if (!grad_outputs[0].defined()) return gradients;
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &dw_weight = saved[2], &project_weight = saved[3], &statistics = saved[kInputs];
    const auto expand_weight = or_none(saved[1]);
    TensorOptionals bn_parameters, se_parameters;
    for (std::size_t i = 4; i < 10; ++i) bn_parameters.push_back(or_none(saved[i]));
    for (std::size_t i = 10; i < kInputs; ++i) se_parameters.push_back(or_none(saved[i]));
    const auto options = Options::saved(context);

    variable_list stored(saved.begin() + kInputs + 1, saved.end());
    if (options.recompute) {
      // With its statistics given, the forward pass repeats the same arithmetic.
      const auto again = gated_residual_forward(x, expand_weight, dw_weight, project_weight, bn_parameters,
                                                se_parameters, statistics, options.eps, options.activation,
                                                options.se_activation, options.se_gate, options.stride, options.padding,
                                                options.dilation, options.residual, /*recompute=*/false,
                                                /*repeats=*/context->saved_data["training"].toBool());
      stored =
          std::apply([](const auto&, const auto&, const auto&... tensor) { return variable_list{tensor...}; }, again);
    }
    std::array<bool, kInputs> given{};
    std::ranges::transform(saved.begin(), saved.begin() + kInputs, given.begin(), &Tensor::defined);
    const auto wanted = gated_residual_backward(
        grad_outputs[0], x, expand_weight, dw_weight, project_weight, bn_parameters, se_parameters, statistics, stored,
        context->saved_data["training"].toBool(), options.activation, options.se_activation, options.se_gate,
        options.stride, options.padding, options.dilation, options.residual, output_mask<kInputs>(context, given));
    std::apply([&](const auto&... gradient) { std::ranges::copy(variable_list{gradient...}, gradients.begin()); },
               wanted);
    return gradients;
  }
};

Tensors9 gated_residual_forward_autograd(const Tensor& x, const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                         const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                         const TensorOptionals& se_parameters, const OptionalTensor& statistics,
                                         at::ArrayRef<double> eps, std::string_view activation,
                                         std::string_view se_activation, std::string_view se_gate, IntArrayRef stride,
                                         IntArrayRef padding, IntArrayRef dilation, bool residual, bool recompute,
                                         bool repeats) {
  refuse_transforms("inverted_residual", x, expand_weight, dw_weight, project_weight, bn_parameters, se_parameters);
  TORCH_CHECK_VALUE(bn_parameters.size() == 6, "bn_parameters: ", bn_parameters.size(), " given; give six");
  TORCH_CHECK_VALUE(se_parameters.size() == 4, "se_parameters: ", se_parameters.size(), " given; give four");
  const Options options{
      eps.vec(), std::string(activation),    stride.vec(),         padding.vec(), dilation.vec(), residual,
      recompute, std::string(se_activation), std::string(se_gate), repeats};
  const auto outputs = GatedResidual::apply(
      x, expand_weight, dw_weight, project_weight, bn_parameters.get(0), bn_parameters.get(1), bn_parameters.get(2),
      bn_parameters.get(3), bn_parameters.get(4), bn_parameters.get(5), se_parameters.get(0), se_parameters.get(1),
      se_parameters.get(2), se_parameters.get(3), statistics, options);
  return {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4], outputs[5], outputs[6], outputs[7], outputs[8]};
}

Tensors14 gated_residual_backward_autograd(const Tensor& grad_y, const Tensor& x, const OptionalTensor& expand_weight,
                                           const Tensor& dw_weight, const Tensor& project_weight,
                                           const TensorOptionals& bn_parameters, const TensorOptionals& se_parameters,
                                           const Tensor& statistics, at::TensorList stored, bool training,
                                           std::string_view activation, std::string_view se_activation,
                                           std::string_view se_gate, IntArrayRef stride, IntArrayRef padding,
                                           IntArrayRef dilation, bool residual, std::array<bool, 14> output_mask) {
  refuse_transforms("inverted_residual's gradient", grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters,
                    se_parameters);
  const auto gradients = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return gated_residual_backward(grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters, se_parameters,
                                   statistics, stored, training, activation, se_activation, se_gate, stride, padding,
                                   dilation, residual, output_mask);
  }();
  variable_list inputs = {grad_y, x, or_undefined(expand_weight), dw_weight, project_weight};
  for (const TensorOptionals& parameters : {bn_parameters, se_parameters}) {
    for (const OptionalTensor& parameter : parameters) inputs.push_back(or_undefined(parameter));
  }
  std::apply([&](const auto&... gradient) { forbid_double_backward("inverted_residual", inputs, {gradient...}); },
             gradients);
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("_gated_residual_forward", translated<gated_residual_forward_autograd>);
  m.impl("_gated_residual_backward", translated<gated_residual_backward_autograd>);
}

}  // namespace fusedsc::aten
