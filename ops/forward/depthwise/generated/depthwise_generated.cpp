#include "fusedsc/forward/depthwise/generated/depthwise_generated.h"

#include <algorithm>

#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {
namespace {

tuning::DepthwiseExtents extents_of(const DepthwiseArguments& a, const DepthwiseTarget& target) {
  return {a.x.dtype,
          static_cast<int>(a.window.kernel[0]),
          static_cast<int>(a.window.stride[0]),
          static_cast<int>(std::min<std::int64_t>(a.y.sizes[3], 1 << 20)),
          target.joined_channels,
          static_cast<bool>(a.statistics),
          target.copies_run_ahead};
}

/// DepthwiseFusion: which parts of the kernel are compiled.
std::string fusion_of(const DepthwiseArguments& a) {
  const char* const parts = a.epilogue ? "eval" : a.prologue || a.statistics ? "training" : "none";
  return std::string("gpu::DepthwiseFusion::") + parts;
}

}  // namespace

std::string why_no_depthwise_text(const DepthwiseArguments& a) {
  return why_no_rows_text(a.window, a.x.sizes[1] == a.y.sizes[1] ? 1 : 2);
}

tuning::Configs depthwise_configs(const DepthwiseArguments& a, const DepthwiseTarget& target) {
  return rows_configs(extents_of(a, target), target);
}

DepthwiseText depthwise_text(const DepthwiseArguments& a, const DepthwiseTarget& target, const tuning::Config& config) {
  const std::string moments =
      "gpu::block_moments_bytes<gpu::Accumulator<T>>(" + std::to_string(config[tuning::Knob::channels]) + ")";
  return rows_text(extents_of(a, target), target, config, why_no_depthwise_text(a),
                   {listed({{"a prologue", static_cast<bool>(a.prologue)},
                            {"an epilogue", static_cast<bool>(a.epilogue)},
                            {"statistics", static_cast<bool>(a.statistics)}}),
                    "forward/depthwise/rows/depthwise_kernel.h", "DepthwiseParameters", "DepthwiseRows", fusion_of(a),
                    "Rows::Rows::kBytes", a.statistics ? moments : "0",
                    "if (parameters.work.is_short()) gpu::let_next_kernel_start();"});
}

}  // namespace fusedsc::generated
