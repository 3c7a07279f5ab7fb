#include "fusedsc/forward/depthwise/generated/depthwise_rows_text.h"

#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {
namespace {

using tuning::DepthwiseTiling;

constexpr std::int64_t kMostKernel = 9, kMostStride = 4;

std::string title_of(const tuning::DepthwiseExtents& extents, const std::string& fused) {
  const std::string kernel = std::to_string(extents.kernel);
  return std::string("Depthwise convolution, ") + tuning::words_of(extents.direction) + ": " + name_of(extents.dtype) +
         ", " + kernel + 'x' + kernel + ", stride " + std::to_string(extents.stride) + fused;
}

}  // namespace

std::string why_no_rows_text(const Window& window, std::int64_t multiplier) {
  if (window.kernel[0] != window.kernel[1] || window.stride[0] != window.stride[1]) return "the window is not square";
  if (window.dilation[0] != 1 || window.dilation[1] != 1) return "the window is dilated";
  if (window.kernel[0] > kMostKernel || window.stride[0] > kMostStride) return "the window is too large for registers";
  return multiplier != 1 ? "there is a channel multiplier" : "";
}

tuning::Configs rows_configs(const tuning::DepthwiseExtents& extents, const DepthwiseTarget& target) {
  return configs_of(tuning::depthwise_tilings(extents, tuning::limits_of(target.architecture)));
}

DepthwiseText rows_text(const tuning::DepthwiseExtents& extents, const DepthwiseTarget& target,
                        const tuning::Config& config, const std::string& why_not, const RowsWords& words) {
  const tuning::DeviceLimits& limits = tuning::limits_of(target.architecture);
  const auto tilings = why_not.empty() ? tuning::depthwise_tilings(extents, limits) : std::vector<DepthwiseTiling>();
  const DepthwiseTiling tiling = tiling_among(tilings, tuning::depthwise_tiling_of, config, why_not);
  DepthwiseText text;
  text.shared_memory_bytes = static_cast<std::size_t>(tuning::resources_of(tiling, extents, limits).used_shared);
  text.channels = tiling.channels;
  text.columns = tiling.columns;
  const int strides = extents.direction == tuning::Direction::grad_input ? 1 : extents.stride;
  text.period = tuning::has_rows_in_memory(tiling, extents) ? 1 : tuning::period_of(tiling, extents) / strides;
  const std::string rows = arguments_of("T", {{"kernel", std::to_string(extents.kernel)},
                                              {"stride", std::to_string(extents.stride)},
                                              {"channels", std::to_string(tiling.channels)},
                                              {"columns", std::to_string(tiling.columns)},
                                              {"rows ahead", std::to_string(tiling.ahead)}});
  const std::string body = std::string("  using Rows = gpu::") + words.kernel + '<' + rows +
                           ",\n                                  " + words.fusion +
                           ">;\n  constexpr int kRows = " + words.rows_bytes + ", kSums = " + words.sums_bytes + ";\n" +
                           asserted_bytes("(kRows > kSums ? kRows : kSums)", text.shared_memory_bytes) +
                           "  gpu::wait_for_previous_kernel();\n  " + words.start + "\n  Rows::run(parameters);\n";
  text.text = kernel_text({title_of(extents, words.fused),
                           target.architecture,
                           config,
                           {"common/gpu/vendor/following_kernel.h", words.header},
                           false,
                           tuning::kDepthwiseThreads,
                           tiling.block_n,
                           words.parameters,
                           extents.dtype,
                           body});
  return text;
}

}  // namespace fusedsc::generated
