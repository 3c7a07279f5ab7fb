#include "transforms.h"

#include <ATen/FuncTorchTLS.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <string>

namespace fusedsc::aten {
namespace {

constexpr char kFunctorch[] = "rule for the transforms of torch.func (grad, vjp, jvp, vmap and what is made of them)";
constexpr char kBatchedGradients[] = "rule for many gradients at once (is_grads_batched, vectorize)";
constexpr char kConvBnAct[] = "conv_bn_act", kConvChain[] = "conv_chain", kDscBlock[] = "dsc_block",
               kInvertedResidual[] = "inverted_residual";
constexpr char kAutocast[] = "autocast's cast of a block's weights";

[[noreturn]] void refuse(const char* op, const char* what) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str("fusedsc: ", op, " has no ", what,
               "; take PyTorch's own layers there: a model that was not swapped has the same state_dict, and "
               "fusedsc.unswap(model) gives it back"));
}

/// As any operator's kernel.
template <const char* op, const char* what>
void refuse_boxed(const c10::OperatorHandle& /*handle*/, torch::jit::Stack* /*stack*/) {
  refuse(op, what);
}

template <const char* op, const char* what>
torch::CppFunction refusal() {
  return torch::CppFunction::makeFromBoxedFunction<&refuse_boxed<op, what>>();
}

}  // namespace

// PyTorch's own header for this question needs another library.
bool is_transformed() {
  const auto& functorch = at::functorch::functorchTLSAccessor();
  if (!functorch) return false;  // nothing ever was
  try {
    functorch->checkSupportsCppAutogradFunction();
  } catch (const c10::Error&) {
    return true;
  }
  return false;
}

void refuse_functorch(const char* op) {
  if (is_transformed()) refuse(op, kFunctorch);
}

void refuse_forward_mode(const char* op) { refuse(op, "forward-mode derivative (torch.autograd.forward_ad, jvp)"); }

// They update running statistics, which are not to be of one element of a batch. What they are made of can be repeated
// for each (fusedsc/vmap.py).
TORCH_LIBRARY_IMPL(fusedsc, FuncTorchBatched, m) {
  m.impl("dsc_block", refusal<kDscBlock, kFunctorch>());
  m.impl("conv_bn_act", refusal<kConvBnAct, kFunctorch>());
  m.impl("conv_chain", refusal<kConvChain, kFunctorch>());
  m.impl("inverted_residual", refusal<kInvertedResidual, kFunctorch>());
}

// PyTorch repeats the others; operators that take lists of tensors it cannot.
TORCH_LIBRARY_IMPL(fusedsc, Batched, m) {
  m.impl("_conv_chain_backward", refusal<kConvChain, kBatchedGradients>());
  m.impl("_gated_residual_backward", refusal<kInvertedResidual, kBatchedGradients>());
  m.impl("_cast", refusal<kAutocast, kBatchedGradients>());
  m.impl("_cast_sliding", refusal<kAutocast, kBatchedGradients>());
}

}  // namespace fusedsc::aten
