#include "fusedsc/fused/cast.h"

#include "fusedsc/common/status.h"
#include "fusedsc/fused/cast_gpu.h"

namespace fusedsc {

std::string why_not_cast(const CastArguments& arguments) {
#ifndef FUSEDSC_GPU
  static_cast<void>(arguments);
  return "this build has no GPU kernels";
#else
  for (const auto& [from, to] : arguments.runs) {
    if (from.device != Device::gpu || to.device != Device::gpu) return "a tensor is not on a GPU";
    if (from.dtype != arguments.runs.front().first.dtype || to.dtype != arguments.runs.front().second.dtype)
      return "the tensors are of several types";
    if (from.sizes != to.sizes || from.sizes[0] * from.sizes[1] * from.sizes[2] != 1)
      return "a tensor and what it is cast to are no runs of the same length";
    if (from.sizes[3] > 1 && (from.strides[3] != 1 || to.strides[3] != 1)) return "elements are no neighbours";
  }
  return "";
#endif
}

void cast(const CastArguments& arguments, const Execution& execution) {
  const std::string reason = why_not_cast(arguments);
  if (!reason.empty()) throw Unsupported("cast: " + reason);
#ifdef FUSEDSC_GPU
  gpu::cast(arguments, execution.stream);
#else
  static_cast<void>(execution);
#endif
}

}  // namespace fusedsc
