#include "fusedsc/forward/pointwise/generated/pointwise_generated.h"

#include <algorithm>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {
namespace {

using tuning::Config;
using tuning::Configs;
using tuning::PointwiseTiling;

constexpr std::size_t kMostDistributed = 48;
int accumulator_of(DataType dtype) { return static_cast<int>(size_of(accumulation_type(dtype))); }

tuning::PointwiseExtents extents_of(const PointwiseArguments& a) {
  return {a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.y.sizes[1] / a.groups, a.x.sizes[1] / a.groups, a.groups};
}

std::string fused_parts_of(const PointwiseArguments& a) {
  return listed({{"a prologue", static_cast<bool>(a.prologue)},
                 {"an epilogue", static_cast<bool>(a.epilogue)},
                 {"statistics", static_cast<bool>(a.statistics)}});
}

// ------------------------------------------------------------------------------------------------ channel distribution

bool can_distribute(const PointwiseArguments& a) { return !a.statistics; }

GeneratedText distributed_text(const PointwiseArguments& a, const PointwiseTarget& target, const Config& config) {
  const PointwiseTiling tiling = tuning::pointwise_tiling_of(config);
  const tuning::DeviceLimits& limits = tuning::limits_of(target.architecture);
  const int accumulator = accumulator_of(a.x.dtype), wave = limits.wave;
  if (!can_distribute(a)) throw Unsupported("generated: channel distribution leaves no statistics");
  const bool is_whole = tiling.group_c <= std::min(32, wave) && wave % tiling.group_c == 0 &&
                        tiling.wave_c % tiling.filters(wave) == 0 && tiling.threads(wave) <= limits.block_threads &&
                        tiling.block_n * tiling.wave_n <= limits.waves;
  if (!is_whole || !tuning::resources_of(tiling, limits, accumulator).fit()) {
    throw Unsupported("generated: " + tuning::printed(config) + " does not fit " + limits.architecture);
  }
  GeneratedText text;
  text.threads = tiling.threads(wave);
  text.shared_memory_bytes = static_cast<std::size_t>(tuning::resources_of(tiling, limits, accumulator).used_shared);
  text.positions = tiling.block_positions();
  text.channels = tiling.block_channels();
  const auto number = [](int value) { return std::to_string(value); };
  const std::string body = "  using Tiling = gpu::DistributedTiling<" +
                           arguments_of("", {{"wave", number(wave)},
                                             {"Wave_W", number(tiling.wave_w)},
                                             {"Wave_C", number(tiling.wave_c)},
                                             {"Repeat_W", number(tiling.repeat_w)},
                                             {"Repeat_C", number(tiling.repeat_c)},
                                             {"Group_C", number(tiling.group_c)}}) +
                           ">;\n  using Fusion = gpu::DistributedFusion<" +
                           arguments_of("", {{"bias", word(static_cast<bool>(a.bias))},
                                             {"prologue", word(a.prologue.scale || a.prologue.shift)},
                                             {"", activation_word(a.prologue.activation)},
                                             {"epilogue", word(a.epilogue.scale || a.epilogue.shift)},
                                             {"", activation_word(a.epilogue.activation)},
                                             {"residual", word(static_cast<bool>(a.epilogue.residual))}}) +
                           ">;\n" + asserted_bytes("Tiling::kBytes<gpu::Accumulator<T>>", text.shared_memory_bytes) +
                           "  gpu::PointwiseDistributed<T, Tiling, /*channels inner*/ " + word(target.channels_inner) +
                           ", Fusion>::run(parameters);\n";
  text.text = kernel_text({title_of(tuning::Direction::forward, a.x.dtype, target.channels_inner, fused_parts_of(a)),
                           target.architecture,
                           config,
                           {"forward/pointwise/generated/pointwise_distributed.h"},
                           false,
                           text.threads,
                           tiling.block_n,
                           "PointwiseParameters",
                           a.x.dtype,
                           body});
  return text;
}

// -----------------------------------------------------------------------------------------------------------------
// tiles

tuning::MatrixExtents tiles_extents_of(const PointwiseArguments& a, const PointwiseTarget& target) {
  return {.dtype = a.x.dtype,
          .tf32 = target.has_tf32 && a.allow_tf32 && a.x.dtype == DataType::float32,
          .channels_inner = target.channels_inner,
          .copy_stages = target.copy_stages,
          .fused = a.prologue || a.epilogue || a.statistics};
}

// ----------------------------------------------------------------------------------------------------------- fragments

tuning::FragmentExtents fragments_extents_of(const PointwiseArguments& a, const PointwiseTarget& target) {
  return {.dtype = a.x.dtype,
          .memory = target.fragments,
          .fused = a.prologue || a.epilogue || a.statistics,
          .depth = static_cast<int>(a.x.sizes[1] / a.groups),
          .channels = static_cast<int>(a.y.sizes[1] / a.groups),
          .extras = a.epilogue.residual ? 1 : 0};
}

FragmentWords fragments_words_of(const PointwiseArguments& a) {
  FragmentWords words{fused_parts_of(a),
                      "forward/pointwise/fragments/pointwise_fragments_pass.h",
                      "PointwiseParameters",
                      "ForwardFragments",
                      only_clamps(a.prologue.activation) && only_clamps(a.epilogue.activation),
                      static_cast<int>(a.groups),
                      {}};
  words.set("product.prologue.activation", activation_word(a.prologue.activation));
  words.set("epilogue.activation", activation_word(a.epilogue.activation));
  words.set_if_null("product.prologue.scale", static_cast<bool>(a.prologue.scale));
  words.set_if_null("product.prologue.shift", static_cast<bool>(a.prologue.shift));
  words.set_if_null("bias", static_cast<bool>(a.bias));
  words.set_if_null("epilogue.scale", static_cast<bool>(a.epilogue.scale));
  words.set_if_null("epilogue.shift", static_cast<bool>(a.epilogue.shift));
  words.set_if_null("residual.data", static_cast<bool>(a.epilogue.residual));
  words.set_if_null("partials", static_cast<bool>(a.statistics));
  return words;
}

TilesWords tiles_words_of(const PointwiseArguments& a) {
  return {fused_parts_of(a),      "forward/pointwise/tiles/pointwise_kernel.h",
          "PointwiseParameters",  "pointwise_forward",
          "forward_memory_bytes", ""};
}

}  // namespace

Configs pointwise_configs(const PointwiseArguments& a, const PointwiseTarget& target) {
  Configs configs;
  if (can_distribute(a)) {
    const tuning::DeviceLimits& limits = tuning::limits_of(target.architecture);
    for (const PointwiseTiling& tiling : tuning::best_pointwise_tilings(extents_of(a), limits, target.units,
                                                                        kMostDistributed, accumulator_of(a.x.dtype))) {
      configs.push_back(tuning::config_of(tiling));
    }
  }
  const auto append = [&](const Configs& more) { configs.insert(configs.end(), more.begin(), more.end()); };
  if (!target.elements) append(tiles_configs(tiles_extents_of(a, target), target));
  append(fragments_configs(fragments_extents_of(a, target), target));
  return configs;
}

GeneratedText pointwise_text(const PointwiseArguments& a, const PointwiseTarget& target, const Config& config) {
  if (tuning::is_fragment_tiling(config)) {
    return fragments_text(fragments_extents_of(a, target), target, config, fragments_words_of(a));
  }
  if (!tuning::is_pointwise_tiling(config)) {
    if (target.elements) throw Unsupported("generated: tiles are for runs of elements, not " + tuning::printed(config));
    return tiles_text(tiles_extents_of(a, target), target, config, tiles_words_of(a));
  }
  try {
    return distributed_text(a, target, config);
  } catch (const InvalidArgument& error) {
    throw Unsupported(std::string("generated: ") + error.what());
  }
}

}  // namespace fusedsc::generated
