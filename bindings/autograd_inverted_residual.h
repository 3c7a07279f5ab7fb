/// What the gradients of inverted residuals, with a gate and without, remember of a call.
#pragma once

#include <string>
#include <vector>

#include "autograd.h"

namespace fusedsc::aten {

/// The block's arguments besides its tensors.
struct InvertedResidualOptions {
  std::vector<double> eps;
  std::string activation;
  std::vector<std::int64_t> stride, padding, dilation;
  bool residual, recompute;

  void save(AutogradContext* context) const {
    auto& saved = context->saved_data;
    saved["eps"] = eps;
    saved["activation"] = activation;
    saved["stride"] = stride;
    saved["padding"] = padding;
    saved["dilation"] = dilation;
    saved["residual"] = residual;
    saved["recompute"] = recompute;
  }
  static InvertedResidualOptions saved(AutogradContext* context) {
    auto& saved = context->saved_data;
    return {saved["eps"].toDoubleVector(),  saved["activation"].toStringRef(), saved["stride"].toIntVector(),
            saved["padding"].toIntVector(), saved["dilation"].toIntVector(),   saved["residual"].toBool(),
            saved["recompute"].toBool()};
  }
};

}  // namespace fusedsc::aten
