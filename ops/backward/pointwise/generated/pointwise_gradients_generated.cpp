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

std::string fused_parts_of(const PointwiseBackwardArguments& a, Direction direction) {
  const bool is_input = direction == Direction::grad_input;
  return listed({{"a prologue", static_cast<bool>(a.prologue)},
                 {"a gradient prologue", static_cast<bool>(a.gradient_prologue)},
                 {"an added gradient", is_input && a.grad_add},
                 {"sums", is_input && a.sums}});
}

TilesWords words_of(const PointwiseBackwardArguments& a, const PointwiseTarget& target, Direction direction) {
  const bool is_input = direction == Direction::grad_input;
  const std::string fused = fused_parts_of(a, direction);
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

tuning::FragmentExtents fragments_extents_of(const PointwiseBackwardArguments& a, const PointwiseTarget& target) {
  return {.dtype = a.x.dtype,
          .memory = target.fragments,
          .is_input_gradient = true,
          .fused = a.prologue || a.gradient_prologue || a.grad_add,
          .has_other = static_cast<bool>(a.gradient_prologue),
          .depth = static_cast<int>(a.grad_y.sizes[1] / a.groups),
          .channels = static_cast<int>(a.x.sizes[1] / a.groups),
          .extras = (a.prologue ? 1 : 0) + (a.grad_add ? 1 : 0)};
}

FragmentWords fragments_words_of(const PointwiseBackwardArguments& a) {
  FragmentWords words{fused_parts_of(a, Direction::grad_input),
                      "backward/pointwise/fragments/pointwise_fragments_input.h",
                      "PointwiseInputGradientParameters",
                      "InputGradientFragments",
                      only_clamps(a.prologue.activation),
                      static_cast<int>(a.groups),
                      {}};
  words.set("prologue.activation", activation_word(a.prologue.activation));
  words.set_if_null("product.prologue.scale", static_cast<bool>(a.gradient_prologue.grad_scale));
  words.set_if_null("product.prologue.shift", static_cast<bool>(a.gradient_prologue.offset));
  words.set_if_null("product.prologue.other_scale", static_cast<bool>(a.gradient_prologue.output_scale));
  words.set_if_null("product.prologue.other.data", static_cast<bool>(a.gradient_prologue));
  words.set_if_null("x.data", static_cast<bool>(a.prologue));
  words.set_if_null("prologue.scale", static_cast<bool>(a.prologue.scale));
  words.set_if_null("prologue.shift", static_cast<bool>(a.prologue.shift));
  words.set_if_null("mean", static_cast<bool>(a.sums.mean));
  words.set_if_null("grad_add.data", static_cast<bool>(a.grad_add));
  words.set_if_null("partials", static_cast<bool>(a.sums));
  return words;
}

}  // namespace

tuning::Configs pointwise_gradient_configs(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                           Direction direction) {
  tuning::Configs configs = tiles_configs(extents_of(a, target, direction), target);
  if (direction == Direction::grad_input) {
    const tuning::Configs fragments = fragments_configs(fragments_extents_of(a, target), target);
    configs.insert(configs.end(), fragments.begin(), fragments.end());
  }
  return configs;
}

GeneratedText pointwise_gradient_text(const PointwiseBackwardArguments& a, const PointwiseTarget& target,
                                      Direction direction, const tuning::Config& config) {
  if (direction == Direction::grad_input && tuning::is_fragment_tiling(config)) {
    return fragments_text(fragments_extents_of(a, target), target, config, fragments_words_of(a));
  }
  return tiles_text(extents_of(a, target, direction), target, config, words_of(a, target, direction));
}

}  // namespace fusedsc::generated
