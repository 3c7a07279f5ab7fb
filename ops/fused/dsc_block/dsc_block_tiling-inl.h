/// How the CPU's fused block is cut up, and in what words: "rows=16 splits=16 ahead=2 depth=96 vectors=4".

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILING_INL_H_
#undef FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILING_INL_H_
#else
#define FUSEDSC_FUSED_DSC_BLOCK_DSC_BLOCK_TILING_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>
#include <utility>
#include <vector>

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_plan-inl.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_plan-inl.h"
#include "fusedsc/fused/dsc_block/dsc_block_parts.h"
#include "fusedsc/tuning/config.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Bytes of d that a tile of the prior's holds: it stays in the second-level cache beside the weight and other tiles.
inline constexpr std::int64_t kMiddleTileBytes = 128 << 10;

struct DscTiling {
  std::int64_t rows = 1;                  ///< of d, in a tile
  std::int64_t splits = Slices::kSlices;  ///< pieces of work, at least, if there are so many
  std::int64_t ahead = 0;                 ///< rows of x that are fetched ahead of their use, or none
  GemmBlocks blocks;                      ///< of products with the pointwise weight

  DscTiling() = default;
  explicit DscTiling(const Config& config)
      : rows(config[Knob::rows]),
        splits(config[Knob::splits]),
        ahead(config[Knob::ahead]),
        blocks{config[Knob::vectors], config[Knob::depth]} {}

  Config config() const {
    return {{Knob::rows, rows},
            {Knob::splits, splits},
            {Knob::ahead, ahead},
            {Knob::depth, blocks.depth},
            {Knob::vectors, blocks.vectors}};
  }
};

/// What is taken where nothing was measured.
template <class T>
DscTiling prior_dsc_tiling(const DepthwiseArguments& depthwise) {
  DscTiling tiling;
  const std::int64_t pitch = round_up(depthwise.weight.sizes[0], kLanes<T>);
  const std::int64_t row_bytes = depthwise.y.sizes[3] * pitch * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t fitting = kMiddleTileBytes / std::max<std::int64_t>(row_bytes, 1);
  const std::int64_t whole = std::max<std::int64_t>(fitting / kDepthwiseRows * kDepthwiseRows, kDepthwiseRows);
  tiling.rows = std::clamp<std::int64_t>(whole, 1, std::max<std::int64_t>(depthwise.y.sizes[2], 1));
  tiling.ahead = prior_tiling<T>(depthwise, true).ahead;
  return tiling;
}

/// What of a pass decides which configs there are.
struct DscWork {
  DepthwiseArguments depthwise;
  bool computes_d = true;               ///< or it is stored
  std::int64_t columns = 1, depth = 1;  ///< of products with the pointwise weight

  explicit DscWork(const DscBlockArguments& block)
      : depthwise(depthwise_of(block)), columns(block.pw_weight.sizes[0]), depth(block.pw_weight.sizes[1]) {}
  explicit DscWork(const DscBlockBackwardArguments& block)
      : depthwise(depthwise_of(block)),
        computes_d(!block.d),
        columns(block.pw_weight.sizes[1]),
        depth(block.pw_weight.sizes[0]) {}
};

/// The prior's, and what else there is: those that cut the work up alike are one.
template <class T>
Configs dsc_configs(const DscWork& work) {
  const DepthwiseArguments& depthwise = work.depthwise;
  const DscTiling prior = prior_dsc_tiling<T>(depthwise);
  tuning::Variants variants(prior.config());
  const std::int64_t images = depthwise.y.sizes[0], height = std::max<std::int64_t>(depthwise.y.sizes[2], 1);
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;  // pieces, rows of a tile
  const auto add = [&](std::int64_t rows, std::int64_t splits) {
    const Slices slices(images, height, 1, splits);
    const std::int64_t most = divide_up(height, slices.chunks);
    if (rows < most) rows = std::max<std::int64_t>(rows / kDepthwiseRows * kDepthwiseRows, kDepthwiseRows);
    rows = std::min(rows, most);
    const std::pair cut(slices.count(), rows);
    if (std::find(seen.begin(), seen.end(), cut) != seen.end()) return;
    seen.push_back(cut);
    DscTiling tiling = prior;
    tiling.splits = splits;
    if (rows != std::min(prior.rows, most)) tiling.rows = rows;
    variants.add(tiling.config());
  };
  for (const std::int64_t splits : {prior.splits, prior.splits / 4, std::int64_t{1}}) {
    add(prior.rows, splits);
    add(height, splits);
  }
  for (const std::int64_t rows : {prior.rows / 2, prior.rows * 2, prior.rows / 4, prior.rows * 4}) {
    add(rows, prior.splits);
  }
  if (work.computes_d && reads_input_itself<T>(depthwise)) {
    variants.vary(Knob::ahead, prior.ahead > 0 ? 0 : kDepthwiseRows);
  }
  const auto strips = [&](std::int64_t vectors) { return ColumnStrips<T>(work.columns, vectors).count; };
  for (std::int64_t vectors = kBlockVectors - 1; vectors > 1; --vectors) {
    if (strips(vectors) != strips(vectors + 1)) variants.vary(Knob::vectors, vectors);
  }
  if (work.depth > prior.blocks.depth) variants.vary(Knob::depth, 4 * prior.blocks.depth);
  return variants.configs();
}

/// By the type that is computed in.
template <class Block>
Config dsc_prior_of(const Block& block) {
  const DepthwiseArguments depthwise = depthwise_of(block);
  const bool is_double = block.x.dtype == DataType::float64;
  return (is_double ? prior_dsc_tiling<double>(depthwise) : prior_dsc_tiling<float>(depthwise)).config();
}
template <class Block>
Configs dsc_configs_of(const Block& block) {
  const DscWork work(block);
  return block.x.dtype == DataType::float64 ? dsc_configs<double>(work) : dsc_configs<float>(work);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
