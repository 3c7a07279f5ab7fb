/// How pointwise passes are cut up, and in what words: "rows=448 depth=96 vectors=4", where the positions of a tile are
/// the rows of products; "columns=896 depth=96 vectors=4", where they are the columns (channel-major tiles).

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_TILING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_TILING_INL_H_
#undef FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_TILING_INL_H_
#else
#define FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_TILING_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>
#include <tuple>
#include <vector>

#include "fusedsc/common/cpu/position_lines.h"
#include "fusedsc/forward/pointwise/cpu/pointwise_plan-inl.h"
#include "fusedsc/tuning/config.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

using tuning::Config;
using tuning::Configs;
using tuning::Knob;

struct PointwiseTiling {
  bool channel_major = false;
  std::int64_t positions = 0;  ///< of a tile, about
  GemmBlocks blocks;

  PointwiseTiling(bool channel_major_, std::int64_t positions_)
      : channel_major(channel_major_), positions(positions_) {}
  explicit PointwiseTiling(const Config& config)
      : channel_major(config[Knob::columns] != 0),
        positions(config[channel_major ? Knob::columns : Knob::rows]),
        blocks{config[Knob::vectors], config[Knob::depth]} {}

  Config config() const {
    return {{channel_major ? Knob::columns : Knob::rows, positions},
            {Knob::depth, blocks.depth},
            {Knob::vectors, blocks.vectors}};
  }
};

/// What there is to cut up.
struct PointwiseWork {
  Sizes by_position, by_channel;    ///< x's sizes as position-major and channel-major tiles go over them
  bool contiguous = false;          ///< all tensors are: there may be channel-major tiles
  bool only_channel_major = false;  ///< whatever the layout, and of several lines
  std::int64_t elements = 1;        ///< of a tile, per position
  std::int64_t columns = 1;         ///< of position-major products, the most
  std::int64_t depth = 1;           ///< of all products, the most
};

/// What is taken where nothing was measured.
template <class T>
PointwiseTiling prior_tiling(const PointwiseWork& work) {
  const bool channel_major = work.only_channel_major || (work.contiguous && work.by_channel[3] >= kLeastLine<float>);
  return {channel_major, channel_major ? tile_positions<ChannelMajor<T>, T>(work.elements)
                                       : tile_positions<PositionMajor<T>, T>(work.elements)};
}

/// It, and what else there is: those that cut the work up alike are one.
template <class T>
Configs pointwise_configs(const PointwiseWork& work) {
  const PointwiseTiling prior = prior_tiling<T>(work);
  tuning::Variants variants(prior.config());
  constexpr std::int64_t kLeastPositions = 28, kMostPositions = 2048;
  std::vector<std::tuple<bool, std::int64_t, std::int64_t>> seen;
  for (const bool channel_major : {prior.channel_major, !prior.channel_major}) {
    if (work.only_channel_major ? !channel_major : channel_major && !work.contiguous) continue;
    const std::int64_t usual = channel_major ? tile_positions<ChannelMajor<T>, T>(work.elements)
                                             : tile_positions<PositionMajor<T>, T>(work.elements);
    for (const std::int64_t positions : {usual, usual / 2, usual * 2, usual / 4}) {
      const LineTiles tiles(channel_major ? work.by_channel : work.by_position, positions,
                            channel_major ? ChannelMajor<T>::kPositions : PositionMajor<T>::kPositions, 1,
                            !channel_major || work.only_channel_major);
      const std::tuple cut(channel_major, tiles.together, tiles.per_line);
      if (positions < kLeastPositions || positions > kMostPositions) continue;
      if (std::find(seen.begin(), seen.end(), cut) != seen.end()) continue;
      seen.push_back(cut);
      variants.add(PointwiseTiling(channel_major, positions).config());
    }
  }
  const std::int64_t columns = prior.channel_major ? prior.positions : work.columns;
  const auto strips = [&](std::int64_t vectors) { return ColumnStrips<T>(columns, vectors); };
  for (std::int64_t vectors = kBlockVectors - 1; vectors > 1; --vectors) {
    if (strips(vectors).count != strips(vectors + 1).count) variants.vary(Knob::vectors, vectors);
  }
  const std::int64_t widest = std::min(strips(kBlockVectors).vectors, prior.blocks.vectors);
  const auto depth_blocks = [&](std::int64_t depth) {
    const std::int64_t most = depth * prior.blocks.vectors / std::max<std::int64_t>(widest, 1);
    return (work.depth + most - 1) / most;
  };
  std::int64_t last = depth_blocks(prior.blocks.depth);
  for (const std::int64_t times : {2, 4, 16}) {
    const std::int64_t blocks = depth_blocks(prior.blocks.depth * times);
    if (blocks == last) continue;
    last = blocks;
    PointwiseTiling deeper = prior;
    deeper.blocks.depth *= times;
    variants.add(deeper.config());
    deeper.positions /= 2;
    if (times == 4 && deeper.positions >= kLeastPositions) variants.add(deeper.config());
  }
  return variants.configs();
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
