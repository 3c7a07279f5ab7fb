/// Copies of tensors in the other layout: contiguous ones as channels_last, and back. block_layout.h says what for.
#pragma once

#include <string>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

struct ChangeLayoutArguments {
  ConstTensorView from;
  TensorView to;  ///< sizes and dtype of `from`; one of the two is contiguous, the other channels_last
};

/// Empty, or the reason why there is no kernel for it.
std::string why_not_change_layout(const ChangeLayoutArguments& arguments);
/// Throws Unsupported where there is none, naming the reason.
void change_layout(const ChangeLayoutArguments& arguments, const Execution& execution);

}  // namespace fusedsc
