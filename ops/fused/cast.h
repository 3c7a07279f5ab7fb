/// Runs of elements cast to another type, as a block's weights are between those of the optimizer and those of the
/// tensors: on a GPU one launch, in which each takes as long as all.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

struct CastArguments {
  std::vector<std::pair<ConstTensorView, TensorView>> runs;  ///< [1, 1, 1, elements] each, densely; from and to
};

/// Empty, or the reason why there is no kernel for it.
std::string why_not_cast(const CastArguments& arguments);
/// Throws Unsupported where there is none, naming the reason.
void cast(const CastArguments& arguments, const Execution& execution);

}  // namespace fusedsc
