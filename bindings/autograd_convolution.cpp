/// Gradients of depthwise, pointwise and sliding-channel convolution, of any order. All are linear in x and in weight,
/// so the gradients of their gradients are again convolutions of the same kind.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "autograd.h"
#include "kept_tensors.h"
#include "operators.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

/// A convolution's arguments besides its tensors, the same for forward and backward.
struct Depthwise {
  std::vector<std::int64_t> stride, padding, dilation;

  Tensor forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) const {
    return depthwise_conv2d(x, weight, bias, stride, padding, dilation);
  }
  Tensors3 backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, std::array<bool, 3> mask) const {
    return depthwise_conv2d_backward(grad_y, x, weight, stride, padding, dilation, mask);
  }
  void save(AutogradContext* context) const {
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["dilation"] = dilation;
  }
  static Depthwise saved(AutogradContext* context) {
    return {context->saved_data["stride"].toIntVector(), context->saved_data["padding"].toIntVector(),
            context->saved_data["dilation"].toIntVector()};
  }
};

struct Pointwise {
  std::int64_t groups;

  Tensor forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) const {
    return pointwise_conv2d(x, weight, bias, groups);
  }
  Tensors3 backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, std::array<bool, 3> mask) const {
    return pointwise_conv2d_backward(grad_y, x, weight, groups, mask);
  }
  void save(AutogradContext* context) const { context->saved_data["groups"] = groups; }
  static Pointwise saved(AutogradContext* context) { return {context->saved_data["groups"].toInt()}; }
};

struct SlidingChannel {
  std::int64_t groups;
  double overlap;

  Tensor forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) const {
    return sliding_channel_conv2d(x, weight, bias, groups, overlap);
  }
  Tensors3 backward(const Tensor& grad_y, const Tensor& x, const Tensor& weight, std::array<bool, 3> mask) const {
    return sliding_channel_conv2d_backward(grad_y, x, weight, groups, overlap, mask);
  }
  void save(AutogradContext* context) const {
    context->saved_data["groups"] = groups;
    context->saved_data["overlap"] = overlap;
  }
  static SlidingChannel saved(AutogradContext* context) {
    return {context->saved_data["groups"].toInt(), context->saved_data["overlap"].toDouble()};
  }
};

template <class Convolution>
struct Forward : torch::autograd::Function<Forward<Convolution>> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                        const Convolution& convolution) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.has_value();
    convolution.save(context);
    return convolution.forward(x, weight, bias);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto saved = context->get_saved_variables();
    const auto mask = output_mask<3>(context, {true, true, context->saved_data["has_bias"].toBool()});
    const auto [grad_x, grad_weight, grad_bias] =
        Convolution::saved(context).backward(grad_outputs[0], saved[0], saved[1], mask);
    return {grad_x, grad_weight, grad_bias, Tensor()};
  }
};

/// The backward operator as a function of its own, with only the gradients that are wanted as its outputs.
template <class Convolution>
struct Backward : torch::autograd::Function<Backward<Convolution>> {
  static variable_list forward(AutogradContext* context, const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                               std::array<bool, 3> mask, const Convolution& convolution) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->set_materialize_grads(false);
    context->save_for_backward({grad_y, x, weight});
    context->saved_data["mask"] = std::vector<std::int64_t>(mask.begin(), mask.end());
    convolution.save(context);
    const auto [grad_x, grad_weight, grad_bias] = convolution.backward(grad_y, x, weight, mask);
    variable_list wanted;
    std::ranges::copy_if(variable_list{grad_x, grad_weight, grad_bias}, std::back_inserter(wanted), &Tensor::defined);
    return wanted;
  }

  /// With L = <v_x, grad_x> + <v_weight, grad_weight> + <v_bias, grad_bias>.
  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    const auto saved = context->get_saved_variables();
    const Tensor &grad_y = saved[0], &x = saved[1], &weight = saved[2];
    const auto convolution = Convolution::saved(context);
    const auto [v_x, v_weight, v_bias] = expand(context->saved_data["mask"].toIntVector(), grad_outputs);

    Tensor to_grad_y, to_x, to_weight;
    const auto add = [&to_grad_y](const Tensor& term) { to_grad_y = to_grad_y.defined() ? to_grad_y + term : term; };
    if (context->needs_input_grad(0)) {
      if (v_x.defined()) add(convolution.forward(v_x, weight, {}));
      if (v_weight.defined()) add(convolution.forward(x, v_weight, {}));
      if (v_bias.defined()) add(v_bias.view({1, -1, 1, 1}).expand_as(grad_y));
    }
    if (context->needs_input_grad(1) && v_weight.defined()) {
      to_x = std::get<0>(convolution.backward(grad_y, x, v_weight, {true, false, false}));
    }
    if (context->needs_input_grad(2) && v_x.defined()) {
      to_weight = std::get<1>(convolution.backward(grad_y, v_x, weight, {false, true, false}));
    }
    return {to_grad_y, to_x, to_weight, Tensor(), Tensor()};
  }

  static Tensors3 run(const Tensor& grad_y, const Tensor& x, const Tensor& weight, std::array<bool, 3> mask,
                      const Convolution& convolution) {
    const auto wanted = Backward::apply(grad_y, x, weight, mask, convolution);
    return expand(std::vector<std::int64_t>(mask.begin(), mask.end()), wanted);
  }

  /// The wanted ones back in their places.
  static Tensors3 expand(const std::vector<std::int64_t>& mask, const variable_list& wanted) {
    std::array<Tensor, 3> all;
    auto next = wanted.begin();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (mask[i]) all[i] = *next++;
    }
    return {all[0], all[1], all[2]};
  }
};

Tensor depthwise_conv2d_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                                 IntArrayRef padding, IntArrayRef dilation) {
  refuse_transforms("depthwise_conv2d", x, weight, bias);
  note_parameters(weight, bias);
  return Forward<Depthwise>::apply(x, weight, bias, Depthwise{stride.vec(), padding.vec(), dilation.vec()});
}

Tensors3 depthwise_conv2d_backward_autograd(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                            IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                            std::array<bool, 3> output_mask) {
  refuse_transforms("depthwise_conv2d's gradient", grad_y, x, weight);
  return Backward<Depthwise>::run(grad_y, x, weight, output_mask,
                                  Depthwise{stride.vec(), padding.vec(), dilation.vec()});
}

Tensor pointwise_conv2d_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                 std::int64_t groups) {
  refuse_transforms("pointwise_conv2d", x, weight, bias);
  note_parameters(weight, bias);
  return Forward<Pointwise>::apply(x, weight, bias, Pointwise{groups});
}

Tensors3 pointwise_conv2d_backward_autograd(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                            std::int64_t groups, std::array<bool, 3> output_mask) {
  refuse_transforms("pointwise_conv2d's gradient", grad_y, x, weight);
  return Backward<Pointwise>::run(grad_y, x, weight, output_mask, Pointwise{groups});
}

Tensor sliding_channel_conv2d_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                       std::int64_t groups, double overlap) {
  refuse_transforms("sliding_channel_conv2d", x, weight, bias);
  note_parameters(weight, bias);
  return Forward<SlidingChannel>::apply(x, weight, bias, SlidingChannel{groups, overlap});
}

Tensors3 sliding_channel_conv2d_backward_autograd(const Tensor& grad_y, const Tensor& x, const Tensor& weight,
                                                  std::int64_t groups, double overlap,
                                                  std::array<bool, 3> output_mask) {
  refuse_transforms("sliding_channel_conv2d's gradient", grad_y, x, weight);
  return Backward<SlidingChannel>::run(grad_y, x, weight, output_mask, SlidingChannel{groups, overlap});
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) {
  m.impl("depthwise_conv2d", translated<depthwise_conv2d_autograd>);
  m.impl("depthwise_conv2d_backward", translated<depthwise_conv2d_backward_autograd>);
  m.impl("pointwise_conv2d", translated<pointwise_conv2d_autograd>);
  m.impl("pointwise_conv2d_backward", translated<pointwise_conv2d_backward_autograd>);
  m.impl("sliding_channel_conv2d", translated<sliding_channel_conv2d_autograd>);
  m.impl("sliding_channel_conv2d_backward", translated<sliding_channel_conv2d_backward_autograd>);
}

}  // namespace fusedsc::aten
