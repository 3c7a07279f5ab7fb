#include "fusedsc/fused/cast.h"

#include <limits>

#include "fusedsc/common/status.h"
#include "fusedsc/fused/layout/cast_gpu.h"

namespace fusedsc {
#ifdef FUSEDSC_GPU
namespace {

/// Of the last run, where it has windows.
std::string why_not_sliding(const CastArguments& arguments) {
  const auto& [from, to] = arguments.runs.back();
  const SlidingChannels& windows = arguments.windows;
  const std::int64_t compact = (arguments.gathers ? to.sizes : from.sizes)[3],
                     dense = (arguments.gathers ? from.sizes : to.sizes)[3];
  const std::int64_t filters = compact / windows.width;
  if (compact != filters * windows.width || dense != filters * windows.channels)
    return "a weight with windows and the pointwise one have different numbers of filters";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return dense <= kMost && filters <= kMost / windows.step ? "" : "a weight with windows is too large";
}

}  // namespace
#endif

std::string why_not_cast(const CastArguments& arguments) {
#ifndef FUSEDSC_GPU
  static_cast<void>(arguments);
  return "this build has no GPU kernels";
#else
  const auto* sliding = arguments.windows.channels > 0 ? &arguments.runs.back() : nullptr;
  for (const auto& run : arguments.runs) {
    const auto& [from, to] = run;
    if (from.device != Device::gpu || to.device != Device::gpu) return "a tensor is not on a GPU";
    if (from.dtype != arguments.runs.front().first.dtype || to.dtype != arguments.runs.front().second.dtype)
      return "the tensors are of several types";
    const auto is_run = [](const Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2] == 1; };
    if (!is_run(from.sizes) || !is_run(to.sizes) || (&run != sliding && from.sizes != to.sizes))
      return "a tensor and what it is cast to are no runs of the same length";
    const auto is_dense = [](const auto& view) { return view.sizes[3] <= 1 || view.strides[3] == 1; };
    if (!is_dense(from) || !is_dense(to)) return "elements are no neighbours";
  }
  return sliding != nullptr ? why_not_sliding(arguments) : "";
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
