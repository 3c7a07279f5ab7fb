#include "fusedsc/forward/pointwise/generated/pointwise_fragments_text.h"

#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {
namespace {

using tuning::FragmentRows;
using tuning::FragmentTiling;

/// The tile's type, whose template says which kernel it is.
std::string tile_of(const FragmentTiling& tiling, const tuning::FragmentExtents& extents) {
  const auto number = [](int value) { return std::to_string(value); };
  const int size = static_cast<int>(size_of(extents.dtype));
  const std::pair<const char*, std::string> positions{"tiles of 8 positions", number(tiling.warp_positions() / 8)},
      columns{"columns", number(tiling.columns)}, parts{"parts", number(tiling.parts)},
      stages{"stages", number(tiling.stages)}, bytes{"bytes", number(size)},
      threads{"threads", number(tiling.threads())};
  if (extents.memory == FragmentRows::packed) {
    return "gpu::PackedTile<" + arguments_of("", {positions, columns, stages, parts, threads}) + '>';
  }
  if (tiling.depth == 0) {
    return "gpu::FragmentTile<" + arguments_of("", {positions, columns, parts, stages, bytes, threads}) + '>';
  }
  const std::pair<const char*, std::string> warps{"warps along positions", number(tiling.repeat_w)},
      chunks{"chunks", number(tiling.depth * size / 64)};
  return "gpu::StreamedTile<" + arguments_of("", {positions, columns, warps, chunks, stages, bytes, parts, threads}) +
         '>';
}

}  // namespace

std::string activation_word(Activation activation) { return std::string("Activation::") + name_of(activation); }

tuning::Configs fragments_configs(const tuning::FragmentExtents& extents, const PointwiseTarget& target) {
  return configs_of(tuning::fragment_tilings(extents, tuning::limits_of(target.architecture)));
}

GeneratedText fragments_text(const tuning::FragmentExtents& extents, const PointwiseTarget& target,
                             const tuning::Config& config, const FragmentWords& words) {
  const tuning::DeviceLimits& limits = tuning::limits_of(target.architecture);
  const FragmentTiling tiling =
      tiling_among(tuning::fragment_tilings(extents, limits), tuning::fragment_tiling_of, config);
  GeneratedText text;
  text.threads = tiling.threads();
  text.shared_memory_bytes = static_cast<std::size_t>(tuning::resources_of(tiling, extents, limits).used_shared);
  text.positions = tiling.rows;
  text.channels = tiling.columns;
  const std::string fusion = !extents.fused ? "none" : words.only_clamps ? "clamps" : "all";
  const std::string shape = arguments_of("", {{"depth", std::to_string(extents.depth)},
                                              {"other", word(extents.has_other)},
                                              {"channels", std::to_string(extents.channels)},
                                              {"extras", std::to_string(extents.extras)}});
  std::string body = "  using Product = gpu::FragmentsOfPass<gpu::" + std::string(words.pass) + ", T, " +
                     tile_of(tiling, extents) + ", gpu::FragmentFusion::" + fusion + ">;\n" +
                     asserted_bytes("Product::memory_bytes({" + shape + "})", text.shared_memory_bytes) +
                     "  gpu::" + words.parameters + " known = parameters;\n";
  const auto set = [&](const std::string& member, const std::string& value) {
    body += "  known." + member + " = " + value + ";\n";
  };
  set("product.depth", std::to_string(extents.depth));
  set("product.channels", std::to_string(extents.channels));
  set("product.groups", std::to_string(words.groups));
  for (const auto& [member, value] : words.constants) set(member, value);
  body += "  Product::run(known);\n";
  const tuning::Direction direction =
      extents.is_input_gradient ? tuning::Direction::grad_input : tuning::Direction::forward;
  text.text = kernel_text({title_of(direction, extents.dtype, true, words.fused),
                           target.architecture,
                           config,
                           {words.header},
                           false,
                           text.threads,
                           tiling.block_n,
                           words.parameters,
                           extents.dtype,
                           body});
  return text;
}

}  // namespace fusedsc::generated
