#include "fusedsc/backward/depthwise/generated/depthwise_gradients_generated.h"

#include <algorithm>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {
namespace {

using tuning::Direction;

bool is_fused(const DepthwiseBackwardArguments& a, Direction direction) {
  return a.prologue || a.gradient_prologue || (direction == Direction::grad_input && a.grad_add);
}

tuning::DepthwiseExtents extents_of(const DepthwiseBackwardArguments& a, const DepthwiseTarget& target,
                                    Direction direction) {
  const bool is_input = direction == Direction::grad_input;
  const std::int64_t width = is_input ? divide_up(a.x.sizes[3], a.window.stride[1]) : a.grad_y.sizes[3];
  return {a.x.dtype,
          static_cast<int>(a.window.kernel[0]),
          static_cast<int>(a.window.stride[0]),
          static_cast<int>(std::min<std::int64_t>(width, 1 << 20)),
          target.joined_channels,
          is_input && a.sums,
          target.copies_run_ahead,
          direction,
          is_fused(a, direction)};
}

/// What a block adds up, of so many values of a thread.
std::string sums_of(int values) { return "gpu::block_sums_bytes<gpu::Accumulator<T>>(" + std::to_string(values) + ")"; }

}  // namespace

std::string why_no_depthwise_gradient_text(const DepthwiseBackwardArguments& a) {
  return why_no_rows_text(a.window, a.x.sizes[1] == a.grad_y.sizes[1] ? 1 : 2);
}

tuning::Configs depthwise_gradient_configs(const DepthwiseBackwardArguments& a, const DepthwiseTarget& target,
                                           Direction direction) {
  return rows_configs(extents_of(a, target, direction), target);
}

DepthwiseText depthwise_gradient_text(const DepthwiseBackwardArguments& a, const DepthwiseTarget& target,
                                      Direction direction, const tuning::Config& config) {
  const bool is_input = direction == Direction::grad_input;
  const int channels = config[tuning::Knob::channels];
  const auto taps = static_cast<int>(a.window.kernel[0] * a.window.kernel[1]);
  RowsWords words{listed({{"a prologue", static_cast<bool>(a.prologue)},
                          {"a gradient prologue", static_cast<bool>(a.gradient_prologue)},
                          {"an added gradient", is_input && a.grad_add},
                          {"sums", is_input && a.sums}}),
                  "backward/depthwise/rows/depthwise_weight_kernel.h",
                  "DepthwiseWeightGradientParameters",
                  "DepthwiseWeightGradientRows",
                  arguments_of("", {{"fused", word(is_fused(a, direction))}}),
                  "Rows::kBytes",
                  sums_of((taps + 1) * channels),
                  "gpu::let_next_kernel_start();"};
  if (is_input) {
    words.header = "backward/depthwise/rows/depthwise_input_kernel.h";
    words.parameters = "DepthwiseInputGradientParameters";
    words.kernel = "DepthwiseInputGradientRows";
    words.sums_bytes = a.sums ? sums_of(2 * channels) : "0";
    words.start = "if (parameters.work.is_short()) gpu::let_next_kernel_start();";
  }
  return rows_text(extents_of(a, target, direction), target, config, why_no_depthwise_gradient_text(a), words);
}

}  // namespace fusedsc::generated
