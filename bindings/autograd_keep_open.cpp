/// What makes a block's running statistics part of what is recomputed.
#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>

#include "autograd.h"
#include "running_statistics.h"

namespace fusedsc::aten {
namespace {

struct KeepOpen : torch::autograd::Function<KeepOpen> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y, const at::Tensor& token) {
    context->save_for_backward({token});
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grad_outputs) {
    context->get_saved_variables();
    return {grad_outputs[0], at::Tensor()};
  }
};

}  // namespace

at::Tensor keep_open(const at::Tensor& y) {
  if (!y.requires_grad() || !at::SavedTensorDefaultHooks::get_hooks()) return y;
  return KeepOpen::apply(y, at::empty({0}, y.options()));
}

}  // namespace fusedsc::aten
