#include "fusedsc/backward/pointwise/generated/pointwise_gradients_generated.h"

#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {
namespace {

using tuning::Direction;

tuning::MatrixExtents extents_of(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                 Direction direction) {
  return {.dtype = a.x.dtype,
          .tf32 = target.has_tf32 && a.allow_tf32 && a.x.dtype == DataType::float32,
          .channels_inner = target.channels_inner,
          .elements = target.elements,
          .copy_stages = target.copy_stages,
          .direction = direction,
          .fused = a.prologue || a.gradient_prologue || (direction == Direction::grad_input && a.grad_add),
          .has_other = static_cast<bool>(a.gradient_prologue)};
}

TilesWords words_of(const PointwiseBackwardArguments& a, const PointwiseTarget& target, Direction direction) {
  const bool is_input = direction == Direction::grad_input;
  const std::string fused = listed({{"a prologue", static_cast<bool>(a.prologue)},
                                    {"a gradient prologue", static_cast<bool>(a.gradient_prologue)},
                                    {"an added gradient", is_input && a.grad_add},
                                    {"sums", is_input && a.sums}});
  if (!is_input) {
    return {fused,
            "backward/pointwise/tiles/pointwise_weight_kernel.h",
            "PointwiseWeightGradientParameters",
            "pointwise_weight_gradient",
            "WeightGradientProduct",
            "::Loop::memory_bytes",
            true};
  }
  if (target.elements) {
    return {fused,
            "backward/pointwise/tiles/pointwise_element_sink.h",
            "PointwiseInputGradientParameters",
            "pointwise_input_gradient_elements",
            "input_elements_memory_bytes",
            ""};
  }
  return {fused,
          "backward/pointwise/tiles/pointwise_input_kernel.h",
          "PointwiseInputGradientParameters",
          "pointwise_input_gradient",
          "input_gradient_memory_bytes",
          ""};
}

}  // namespace

tuning::Configs pointwise_gradient_configs(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                           Direction direction) {
  return tiles_configs(extents_of(a, target, direction), target);
}

GeneratedText pointwise_gradient_text(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                      Direction direction, const tuning::Config& config) {
  return tiles_text(extents_of(a, target, direction), target, config, words_of(a, target, direction));
}

}  // namespace fusedsc::generated
