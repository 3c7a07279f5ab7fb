#include "fusedsc/forward/pointwise/generated/pointwise_tiles_text.h"

#include "fusedsc/tuning/generator/kernel_text.h"

namespace fusedsc::generated {

using tuning::MatrixTiling;

std::string title_of(tuning::Direction direction, DataType dtype, bool channels_inner, const std::string& fused) {
  return std::string("Pointwise convolution, ") + tuning::words_of(direction) + ": " + name_of(dtype) + ", " +
         (channels_inner ? "channels_last" : "contiguous") + fused;
}

tuning::Configs tiles_configs(const tuning::MatrixExtents& extents, const PointwiseTarget& target) {
  return configs_of(tuning::matrix_tilings(extents, tuning::limits_of(target.architecture)));
}

GeneratedText tiles_text(const tuning::MatrixExtents& extents, const PointwiseTarget& target,
                         const tuning::Config& config, const TilesWords& words) {
  const tuning::DeviceLimits& limits = tuning::limits_of(target.architecture);
  const MatrixTiling tiling = tiling_among(tuning::matrix_tilings(extents, limits), tuning::matrix_tiling_of, config);
  GeneratedText text;
  text.threads = tuning::kMatrixTilingThreads;
  text.shared_memory_bytes = static_cast<std::size_t>(tuning::resources_of(tiling, extents, limits).used_shared);
  text.positions = target.channels_inner ? tiling.rows : tiling.columns;
  text.channels = target.channels_inner ? tiling.columns : tiling.rows;
  const auto number = [](int value) { return std::to_string(value); };
  std::string how = "<T, Tile, " + arguments_of("", {{"channels inner", word(extents.channels_inner)},
                                                     {"fused", word(extents.fused)}});
  if (words.names_elements) how += std::string(", /*elements*/ ") + word(extents.elements);
  how += '>';
  // The second tensor is one of rows where these are grad_y's.
  const bool of_rows = extents.channels_inner || extents.direction == tuning::Direction::grad_weight;
  const std::string others =
      std::string("(") + word(extents.has_other && of_rows) + ", " + word(extents.has_other && !of_rows) + ')';
  const std::string body =
      "  using Tile = gpu::MatrixTile<" +
      arguments_of("", {{"rows", number(tiling.rows)},
                        {"columns", number(tiling.columns)},
                        {"depth", number(tiling.depth)},
                        {"parts", number(tiling.parts)},
                        {"TensorFloat-32", word(extents.tf32)}}) +
      ">;\n" +
      asserted_bytes(std::string("gpu::") + words.memory + how + words.its_bytes + others, text.shared_memory_bytes) +
      "  gpu::" + words.kernel + how + "(parameters);\n";
  text.text = kernel_text({title_of(extents.direction, extents.dtype, extents.channels_inner, words.fused),
                           target.architecture,
                           config,
                           {words.header},
                           true,
                           text.threads,
                           tiling.block_n,
                           words.parameters,
                           extents.dtype,
                           body});
  return text;
}

}  // namespace fusedsc::generated
