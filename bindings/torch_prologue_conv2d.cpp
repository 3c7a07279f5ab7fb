/// A depthwise or pointwise convolution with an affine map and an activation in front of it, as it loads what it reads,
/// and bias and activation behind: for inference. Kernels for PyTorch's dispatcher, the fake ones that torch.compile
/// asks for sizes, and in place of a gradient the sentence that there is none.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include "arguments.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"
#include "operators.h"
#include "sparse_arguments.h"
#include "tensor_conversion.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

bool is_pointwise(const Tensor& weight, const Window& window, std::int64_t groups) {
  const Padding& padding = window.padding;
  return groups == 1 && weight.sym_size(2) == 1 && weight.sym_size(3) == 1 && window.stride[0] == 1 &&
         window.stride[1] == 1 && padding.left + padding.right + padding.top + padding.bottom == 0;
}

Tensor prologue_conv2d_meta(const Tensor& x, const OptionalTensor& scale, const OptionalTensor& shift,
                            std::string_view prologue, const Tensor& weight, const OptionalTensor& bias,
                            IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                            std::string_view activation) {
  check_activation("x", x);
  check_weight("weight", weight, x);
  const c10::SymIntArrayRef x_sizes = x.sym_sizes();
  check_batch_norm_vector("scale", scale, x, x_sizes[1]);
  check_batch_norm_vector("shift", shift, x, x_sizes[1]);
  const Window window = window_of(weight, stride, padding, dilation);
  const bool pointwise = is_pointwise(weight, window, groups);
  check(pointwise || x_sizes[1] == groups, "groups: it is ", groups, ", with ", x_sizes[1],
        " input channels and a kernel of ", weight.sym_size(2), " x ", weight.sym_size(3),
        "; give a depthwise convolution, with as many groups as input channels, or a 1x1 one without groups, stride or "
        "padding");
  const SymSizes sizes = pointwise ? pointwise_output_sizes(x_sizes, weight.sym_sizes(), 1)
                                   : depthwise_output_sizes(x_sizes, weight.sym_sizes(), window);
  check_bias("bias", bias, x, sizes[1]);
  for (const std::string_view name : {prologue, activation}) activation_from_name(std::string(name));
  return empty_activation(sizes, x);
}

Tensor prologue_conv2d_kernel(const Tensor& x, const OptionalTensor& scale, const OptionalTensor& shift,
                              std::string_view prologue, const Tensor& weight, const OptionalTensor& bias,
                              IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                              std::string_view activation) {
  const Tensor y =
      prologue_conv2d_meta(x, scale, shift, prologue, weight, bias, stride, padding, dilation, groups, activation);
  if (y.numel() == 0) return y;
  const at::ScalarType vectors = accumulation_type(x.scalar_type());
  const Tensor x_ = addressable(x), weight_ = weight.contiguous(), bias_ = vector_of(bias, x.scalar_type()),
               scale_ = vector_of(scale, vectors), shift_ = vector_of(shift, vectors);
  const Window window = window_of(weight, stride, padding, dilation);
  const auto fill = [&](auto arguments) {
    arguments.x = view(x_);
    arguments.weight = view(weight_);
    arguments.bias = channels(bias_);
    arguments.prologue = {channels(scale_), channels(shift_), activation_from_name(std::string(prologue))};
    arguments.epilogue.activation = activation_from_name(std::string(activation));
    arguments.y = mutable_view(y);
    return arguments;
  };
  if (is_pointwise(weight, window, groups)) {
    auto arguments = fill(PointwiseArguments());
    arguments.allow_tf32 = convolutions_allow_tf32();
    run(plan_pointwise_conv2d, arguments, x);
  } else {
    auto arguments = fill(DepthwiseArguments());
    arguments.window = window;
    run(plan_depthwise_conv2d, arguments, x);
  }
  return y;
}

Tensor prologue_conv2d_autograd(const Tensor& x, const OptionalTensor& scale, const OptionalTensor& shift,
                                std::string_view prologue, const Tensor& weight, const OptionalTensor& bias,
                                IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, std::int64_t groups,
                                std::string_view activation) {
  refuse_gradient("a convolution with what is in front of it", "the network that fusedsc.sparse.restore gives back", x,
                  weight, bias);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return prologue_conv2d(x, scale, shift, prologue, weight, bias, stride, padding, dilation, groups, activation);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { m.impl("_prologue_conv2d", translated<prologue_conv2d_kernel>); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { m.impl("_prologue_conv2d", translated<prologue_conv2d_kernel>); }
TORCH_LIBRARY_IMPL(fusedsc, Meta, m) { m.impl("_prologue_conv2d", translated<prologue_conv2d_meta>); }
TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) { m.impl("_prologue_conv2d", translated<prologue_conv2d_autograd>); }

}  // namespace fusedsc::aten
