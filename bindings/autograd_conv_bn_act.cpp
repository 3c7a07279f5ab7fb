/// Gradients of convolution -> BatchNorm -> activation.
#include <torch/library.h>

#include <vector>

#include "autograd.h"
#include "operators.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// The operator's arguments besides its tensors.
struct Options {
  double eps;
  std::string activation;
  std::vector<std::int64_t> stride, padding, dilation;
};

struct ConvBnAct : torch::autograd::Function<ConvBnAct> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                               const OptionalTensor& statistics, const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, batch_statistics] =
        conv_bn_act_forward(x, weight, bn_weight, bn_bias, statistics, options.eps, options.activation, options.stride,
                            options.padding, options.dilation);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({batch_statistics});
    context->save_for_backward(
        {x, weight, or_undefined(bn_weight), or_undefined(bn_bias), statistics.value_or(batch_statistics)});
    context->saved_data["training"] = !statistics.has_value();
    context->saved_data["activation"] = options.activation;
    context->saved_data["stride"] = options.stride;
    context->saved_data["padding"] = options.padding;
    context->saved_data["dilation"] = options.dilation;
    return {y, batch_statistics};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    variable_list gradients(6);
    if (!grad_outputs[0].defined()) return gradients;
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &statistics = saved[4];
    const auto bn_weight = or_none(saved[2]), bn_bias = or_none(saved[3]);
    auto& options = context->saved_data;
    const auto mask = output_mask<4>(context, {true, true, bn_weight.has_value(), bn_bias.has_value()});
    std::tie(gradients[0], gradients[1], gradients[2], gradients[3]) =
        conv_bn_act_backward(grad_outputs[0], x, weight, bn_weight, bn_bias, statistics, options["training"].toBool(),
                             options["activation"].toStringView(), options["stride"].toIntVector(),
                             options["padding"].toIntVector(), options["dilation"].toIntVector(), mask);
    return gradients;
  }
};

Tensors2 conv_bn_act_forward_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bn_weight,
                                      const OptionalTensor& bn_bias, const OptionalTensor& statistics, double eps,
                                      std::string_view activation, IntArrayRef stride, IntArrayRef padding,
                                      IntArrayRef dilation) {
  refuse_transforms("conv_bn_act", x, weight, bn_weight, bn_bias);
  const Options options{eps, std::string(activation), stride.vec(), padding.vec(), dilation.vec()};
  const auto outputs = ConvBnAct::apply(x, weight, bn_weight, bn_bias, statistics, options);
  return {outputs[0], outputs[1]};
}

Tensors4 conv_bn_act_backward_autograd(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                       const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                                       const Tensor& statistics, bool training, std::string_view activation,
                                       IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                       std::array<bool, 4> output_mask) {
  refuse_transforms("conv_bn_act's gradient", grad_y, x, weight, bn_weight, bn_bias);
  const auto gradients = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return conv_bn_act_backward(grad_y, x, weight, bn_weight, bn_bias, statistics, training, activation, stride,
                                padding, dilation, output_mask);
  }();
  const auto& [g0, g1, g2, g3] = gradients;
  forbid_double_backward("conv_bn_act", {grad_y, x, weight, or_undefined(bn_weight), or_undefined(bn_bias)},
                         {g0, g1, g2, g3});
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("_conv_bn_act_forward", translated<conv_bn_act_forward_autograd>);
  m.impl("_conv_bn_act_backward", translated<conv_bn_act_backward_autograd>);
}

}  // namespace fusedsc::aten
