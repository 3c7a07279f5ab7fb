/// Gradients of the fused block DW -> BatchNorm -> activation -> PW.
#include <torch/library.h>

#include <vector>

#include "autograd.h"
#include "operators.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// The block's arguments besides its tensors.
struct Options {
  double eps;
  std::string activation;
  std::vector<std::int64_t> stride, padding, dilation;
  std::optional<bool> recompute;
  std::int64_t groups;
  std::optional<double> overlap;
};

struct DscBlock : torch::autograd::Function<DscBlock> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& dw_weight,
                               const OptionalTensor& dw_bias, const OptionalTensor& bn_weight,
                               const OptionalTensor& bn_bias, const Tensor& pw_weight, const OptionalTensor& pw_bias,
                               const OptionalTensor& statistics, const Options& options) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, batch_statistics, d] = dsc_block_forward(
        x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics, options.eps, options.activation,
        options.stride, options.padding, options.dilation, options.recompute, options.groups, options.overlap);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({batch_statistics, d});
    context->save_for_backward({x, dw_weight, or_undefined(dw_bias), or_undefined(bn_weight), or_undefined(bn_bias),
                                pw_weight, statistics.value_or(batch_statistics), d});
    context->saved_data["has_pw_bias"] = pw_bias.has_value();
    context->saved_data["training"] = !statistics.has_value();
    context->saved_data["eps"] = options.eps;
    context->saved_data["activation"] = options.activation;
    context->saved_data["stride"] = options.stride;
    context->saved_data["padding"] = options.padding;
    context->saved_data["dilation"] = options.dilation;
    context->saved_data["recompute"] = options.recompute;
    context->saved_data["groups"] = options.groups;
    context->saved_data["overlap"] = options.overlap;
    return {y, batch_statistics, d};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    variable_list gradients(9);
    if (!grad_outputs[0].defined()) return gradients;
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &dw_weight = saved[1], &pw_weight = saved[5], &statistics = saved[6], &d = saved[7];
    const auto dw_bias = or_none(saved[2]), bn_weight = or_none(saved[3]), bn_bias = or_none(saved[4]);
    auto& options = context->saved_data;
    const auto mask = output_mask<7>(context, {true, true, dw_bias.has_value(), bn_weight.has_value(),
                                               bn_bias.has_value(), true, options["has_pw_bias"].toBool()});
    const auto wanted = dsc_block_backward(
        grad_outputs[0], x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, statistics, d,
        options["training"].toBool(), options["activation"].toStringView(), options["stride"].toIntVector(),
        options["padding"].toIntVector(), options["dilation"].toIntVector(), options["recompute"].toOptional<bool>(),
        mask, options["groups"].toInt(), options["overlap"].toOptional<double>(), options["eps"].toDouble());
    std::tie(gradients[0], gradients[1], gradients[2], gradients[3], gradients[4], gradients[5], gradients[6]) = wanted;
    return gradients;
  }
};

Tensors3 dsc_block_forward_autograd(const Tensor& x, const Tensor& dw_weight, const OptionalTensor& dw_bias,
                                    const OptionalTensor& bn_weight, const OptionalTensor& bn_bias,
                                    const Tensor& pw_weight, const OptionalTensor& pw_bias,
                                    const OptionalTensor& statistics, double eps, std::string_view activation,
                                    IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                    std::optional<bool> recompute, std::int64_t groups, std::optional<double> overlap) {
  refuse_transforms("dsc_block", x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias);
  const Options options{eps,    std::string(activation), stride.vec(), padding.vec(), dilation.vec(), recompute, groups,
                        overlap};
  const auto outputs =
      DscBlock::apply(x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, pw_bias, statistics, options);
  return {outputs[0], outputs[1], outputs[2]};
}

Tensors7 dsc_block_backward_autograd(const Tensor& grad_y, const Tensor& x, const Tensor& dw_weight,
                                     const OptionalTensor& dw_bias, const OptionalTensor& bn_weight,
                                     const OptionalTensor& bn_bias, const Tensor& pw_weight, const Tensor& statistics,
                                     const Tensor& d, bool training, std::string_view activation, IntArrayRef stride,
                                     IntArrayRef padding, IntArrayRef dilation, std::optional<bool> recompute,
                                     std::array<bool, 7> output_mask, std::int64_t groups,
                                     std::optional<double> overlap, double eps) {
  refuse_transforms("dsc_block's gradient", grad_y, x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight);
  const auto gradients = [&] {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return dsc_block_backward(grad_y, x, dw_weight, dw_bias, bn_weight, bn_bias, pw_weight, statistics, d, training,
                              activation, stride, padding, dilation, recompute, output_mask, groups, overlap, eps);
  }();
  const auto& [g0, g1, g2, g3, g4, g5, g6] = gradients;
  forbid_double_backward(
      "dsc_block",
      {grad_y, x, dw_weight, or_undefined(dw_bias), or_undefined(bn_weight), or_undefined(bn_bias), pw_weight},
      {g0, g1, g2, g3, g4, g5, g6});
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("_dsc_block_forward", translated<dsc_block_forward_autograd>);
  m.impl("_dsc_block_backward", translated<dsc_block_backward_autograd>);
}

}  // namespace fusedsc::aten
