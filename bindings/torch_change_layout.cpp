/// A tensor in the other layout, contiguous or channels_last, as blocks want their ends (block_layout.h).
#include <ATen/ATen.h>
#include <torch/library.h>

#include "arguments.h"
#include "autograd.h"
#include "fusedsc/fused/change_layout.h"
#include "operators.h"
#include "tensor_conversion.h"
#include "transforms.h"
#include "translated.h"

namespace fusedsc::aten {
namespace {

Tensor change_layout_meta(const Tensor& x, bool channels_last) {
  check_activation("x", x);
  return at::empty_symint(x.sym_sizes(), x.options().memory_format(memory_format_of(channels_last)));
}

Tensor change_layout_kernel(const Tensor& x, bool channels_last) {
  const Tensor result = change_layout_meta(x, channels_last);
  if (x.numel() == 0) return result;
  const ChangeLayoutArguments arguments{view(x), mutable_view(result)};
  if (!why_not_change_layout(arguments).empty()) return result.copy_(x);  // whatever strides a gradient came with
  const c10::DeviceGuard guard(x.device());
  fusedsc::change_layout(arguments, execution_on(x.device()));
  return result;
}

/// The gradient has the layout that x had.
struct ChangeLayout : torch::autograd::Function<ChangeLayout> {
  static Tensor forward(AutogradContext* context, const Tensor& x, bool channels_last) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->set_materialize_grads(false);
    context->saved_data["was_channels_last"] = x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
    return change_layout(x, channels_last);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    if (!grad_outputs[0].defined()) return {Tensor(), Tensor()};
    return {change_layout(grad_outputs[0], context->saved_data["was_channels_last"].toBool()), Tensor()};
  }
};

Tensor change_layout_autograd(const Tensor& x, bool channels_last) {
  refuse_transforms("_change_layout", x);
  return ChangeLayout::apply(x, channels_last);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusedsc, CPU, m) { m.impl("_change_layout", translated<change_layout_kernel>); }
TORCH_LIBRARY_IMPL(fusedsc, CUDA, m) { m.impl("_change_layout", translated<change_layout_kernel>); }
TORCH_LIBRARY_IMPL(fusedsc, Meta, m) { m.impl("_change_layout", translated<change_layout_meta>); }
TORCH_LIBRARY_IMPL(fusedsc, Autograd, m) { m.impl("_change_layout", translated<change_layout_autograd>); }

}  // namespace fusedsc::aten
