#include "transforms.h"

#include <ATen/FuncTorchTLS.h>
#include <c10/util/Exception.h>

namespace fusedsc::aten {
namespace {

[[noreturn]] void refuse(const char* op, const char* what) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str("fusedsc: ", op, " has no ", what,
               "; take PyTorch's own layers there: a model that was not swapped has the same state_dict, and "
               "fusedsc.unswap(model) gives it back"));
}

/// Whether torch.func transforms what runs now in this thread. Its own header for this question needs another library.
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

}  // namespace

void refuse_functorch(const char* op) {
  if (is_transformed())
    refuse(op, "rule for the transforms of torch.func (grad, vjp, jvp, vmap and what is made of them)");
}

void refuse_forward_mode(const char* op) { refuse(op, "forward-mode derivative (torch.autograd.forward_ad, jvp)"); }

}  // namespace fusedsc::aten
