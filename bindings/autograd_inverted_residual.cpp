/// Gradients of the inverted residual.
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "autograd_inverted_residual.h"
#include "operators.h"
#include "transforms.h"

namespace fusedsc::aten {
namespace {

using Options = InvertedResidualOptions;

struct InvertedResidual : torch::autograd::Function<InvertedResidual> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalTensor& expand_weight,
                               const Tensor& dw_weight, const Tensor& project_weight, const OptionalTensor& weight0,
                               const OptionalTensor& bias0, const OptionalTensor& weight1, const OptionalTensor& bias1,
                               const OptionalTensor& weight2, const OptionalTensor& bias2,
                               const OptionalTensor& statistics, const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, batch_statistics, e, d, p] = inverted_residual_forward(
        x, expand_weight, dw_weight, project_weight, TensorOptionals({weight0, bias0, weight1, bias1, weight2, bias2}),
        statistics, options.eps, options.activation, options.stride, options.padding, options.dilation,
        options.residual, options.recompute);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({batch_statistics, e, d, p});
    context->save_for_backward({x, or_undefined(expand_weight), dw_weight, project_weight, or_undefined(weight0),
                                or_undefined(bias0), or_undefined(weight1), or_undefined(bias1), or_undefined(weight2),
                                or_undefined(bias2), statistics.value_or(batch_statistics), e, d, p});
    context->saved_data["training"] = !statistics.has_value();
    options.save(context);
    return {y, batch_statistics, e, d, p};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    variable_list gradients(12);
    if (!grad_outputs[0].defined()) return gradients;
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &dw_weight = saved[2], &project_weight = saved[3], &statistics = saved[10];
    const auto expand_weight = or_none(saved[1]);
    TensorOptionals bn_parameters;
    for (std::size_t i = 4; i < 10; ++i) bn_parameters.push_back(or_none(saved[i]));
    const auto options = Options::saved(context);

    Tensor e = saved[11], d = saved[12], p = saved[13];
    if (options.recompute) {
      // With its statistics given, the forward pass repeats the same arithmetic.
      std::tie(std::ignore, std::ignore, e, d, p) = inverted_residual_forward(
          x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, options.eps, options.activation,
          options.stride, options.padding, options.dilation, options.residual, /*recompute=*/false);
    }
    std::array<bool, 10> given{};
    std::ranges::transform(saved.begin(), saved.begin() + 10, given.begin(), &Tensor::defined);
    const auto wanted = inverted_residual_backward(
        grad_outputs[0], x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, e, d, p,
        context->saved_data["training"].toBool(), options.activation, options.stride, options.padding, options.dilation,
        options.residual, output_mask<10>(context, given));
    std::apply([&](const auto&... gradient) { std::ranges::copy(variable_list{gradient...}, gradients.begin()); },
               wanted);
    return gradients;
  }
};

Tensors5 inverted_residual_forward_autograd(const Tensor& x, const OptionalTensor& expand_weight,
                                            const Tensor& dw_weight, const Tensor& project_weight,
                                            const TensorOptionals& bn_parameters, const OptionalTensor& statistics,
                                            at::ArrayRef<double> eps, std::string_view activation, IntArrayRef stride,
                                            IntArrayRef padding, IntArrayRef dilation, bool residual, bool recompute) {
  refuse_transforms("inverted_residual", x, expand_weight, dw_weight, project_weight, bn_parameters);
  TORCH_CHECK_VALUE(bn_parameters.size() == 6, "bn_parameters: ", bn_parameters.size(), " given; give six");
  const Options options{eps.vec(), std::string(activation), stride.vec(), padding.vec(), dilation.vec(), residual,
                        recompute};
  const auto outputs = InvertedResidual::apply(x, expand_weight, dw_weight, project_weight, bn_parameters.get(0),
                                               bn_parameters.get(1), bn_parameters.get(2), bn_parameters.get(3),
                                               bn_parameters.get(4), bn_parameters.get(5), statistics, options);
  return {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4]};
}

Tensors10 inverted_residual_backward_autograd(const Tensor& grad_y, const Tensor& x,
                                              const OptionalTensor& expand_weight, const Tensor& dw_weight,
                                              const Tensor& project_weight, const TensorOptionals& bn_parameters,
                                              const Tensor& statistics, const Tensor& e, const Tensor& d,
                                              const Tensor& p, bool training, std::string_view activation,
                                              IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                              bool residual, std::array<bool, 10> output_mask) {
  refuse_transforms("inverted_residual's gradient", grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters);
  const auto gradients = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return inverted_residual_backward(grad_y, x, expand_weight, dw_weight, project_weight, bn_parameters, statistics, e,
                                      d, p, training, activation, stride, padding, dilation, residual, output_mask);
  }();
  variable_list inputs = {grad_y, x, or_undefined(expand_weight), dw_weight, project_weight};
  for (const OptionalTensor& parameter : bn_parameters) inputs.push_back(or_undefined(parameter));
  std::apply([&](const auto&... gradient) { forbid_double_backward("inverted_residual", inputs, {gradient...}); },
             gradients);
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("_inverted_residual_forward", inverted_residual_forward_autograd);
  m.impl("_inverted_residual_backward", inverted_residual_backward_autograd);
}

}  // namespace fusedsc::aten
