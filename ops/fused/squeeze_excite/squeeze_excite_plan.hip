#include "fusedsc/fused/squeeze_excite/squeeze_excite_plan.h"

#include <algorithm>
#include <limits>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu {
namespace {

/// What an image costs a thread apart from its items, in items: nothing hides its first loads.
constexpr std::int64_t kImageStart = 2;

/// One way to share the maps of an image out.
struct Lanes {
  std::int64_t channel, item, channel_blocks, splits;
  std::int64_t cost;  ///< of all images, in items
};

struct Maps {
  std::int64_t images, channel_groups, items;  ///< of an image
  std::int64_t blocks, split_cost;

  /// The best number of splits for these lanes.
  Lanes with(std::int64_t channel_lanes) const {
    Lanes lanes{channel_lanes, std::clamp<std::int64_t>(kItemThreads / channel_lanes, 1, items),
                divide_up(channel_groups, channel_lanes), 1, 0};
    lanes.cost = cost(lanes);
    // Equal shares of what the lanes do not get done in one step, for the blocks that would else have nothing to do.
    const std::int64_t steps = divide_up(items, lanes.item);
    const std::int64_t free = std::clamp<std::int64_t>(blocks / (images * lanes.channel_blocks), 1, steps);
    Lanes split = lanes;
    split.splits = divide_up(steps, divide_up(steps, free));
    split.cost = cost(split) + split_cost;
    return split.splits > 1 && split.cost < lanes.cost ? split : lanes;
  }

 private:
  std::int64_t cost(const Lanes& lanes) const {
    const std::int64_t rounds = divide_up(images * lanes.channel_blocks * lanes.splits, blocks);
    return rounds * (divide_up(items, lanes.item * lanes.splits) + kImageStart);
  }
};

/// Neighbouring lanes shall read so much of what lies together.
constexpr std::int64_t kRunBytes = 128;

}  // namespace

MapsWork plan_maps(const ConstTensorView& x, const DepthwiseTile& tile, int blocks, int split_cost) {
  const std::int64_t positions = x.sizes[2] * x.sizes[3];
  if (positions > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported("squeeze_excite: maps of " + std::to_string(positions) + " positions, more than 2147483647");
  }
  const bool channels_fastest = x.strides[1] < x.strides[3];
  const std::int64_t column_groups = divide_up(x.sizes[3], tile.columns);
  const Maps maps{x.sizes[0], divide_up(x.sizes[1], tile.channels), x.sizes[2] * column_groups, blocks, split_cost};
  const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
  const std::int64_t own_run = (channels_fastest ? tile.channels : tile.columns) * bytes;
  const std::int64_t run_lanes = divide_up(kRunBytes, own_run);
  Lanes best{};
  const auto consider = [&](std::int64_t channel_lanes) {
    const Lanes lanes = maps.with(channel_lanes);
    if (best.channel == 0 || lanes.cost < best.cost) best = lanes;
  };
  if (channels_fastest) {
    const std::int64_t least = std::min(run_lanes, maps.channel_groups);
    for (std::int64_t parts = 1; divide_up(maps.channel_groups, parts) >= least; ++parts) {
      const std::int64_t lanes = divide_up(maps.channel_groups, parts);
      if (lanes <= kItemThreads) consider(lanes);
      if (lanes == 1) break;
    }
  } else {
    const std::int64_t least = std::min(run_lanes, maps.items);
    for (std::int64_t lanes = 1; lanes <= kItemThreads / least; lanes *= 2) consider(lanes);
  }

  MapsWork work;
  work.images = static_cast<int>(maps.images);
  work.maps.channels_fastest = channels_fastest;
  work.maps.channel_lanes = static_cast<int>(best.channel);
  work.maps.item_lanes = static_cast<int>(best.item);
  work.maps.channel_blocks = static_cast<int>(best.channel_blocks);
  work.maps.splits = static_cast<int>(best.splits);
  work.maps.items = static_cast<std::uint32_t>(maps.items);
  work.maps.strips = Divisor(static_cast<std::uint32_t>(x.sizes[2]));
  work.maps.column_groups = Divisor(static_cast<std::uint32_t>(column_groups));
  work.maps.by_channel_lanes = Divisor(static_cast<std::uint32_t>(best.channel));
  work.maps.by_item_lanes = Divisor(static_cast<std::uint32_t>(best.item));
  work.maps.by_channel_blocks = Divisor(static_cast<std::uint32_t>(best.channel_blocks));
  const std::int64_t image = best.channel_blocks * best.splits;  // its blocks
  work.by_blocks = Divisor(static_cast<std::uint32_t>(image));
  work.image_blocks = static_cast<int>(std::clamp<std::int64_t>(blocks / image, 1, maps.images));
  return work;
}

}  // namespace fusedsc::gpu
