#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"

#include <limits>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu {
namespace {

/// What a strip costs apart from its rows, in rows: its first loads have nothing to hide behind.
constexpr std::int64_t kStripStart = 2;

struct Lanes {
  std::int64_t channel, item;

  /// Blocks' worth of threads that it takes to give each group of channels of each item its own.
  std::int64_t units(std::int64_t channel_groups, std::int64_t items) const {
    return divide_up(channel_groups, channel) * divide_up(items, item);
  }
};

/// The lanes that leave the fewest threads without work, among those whose neighbours' accesses fill whole sectors.
/// `group_bytes`: of a group of channels.
Lanes choose_lanes(const DepthwiseGrid& grid, std::int64_t channel_groups, std::int64_t items,
                   std::int64_t group_bytes) {
  const bool channels_fastest = grid.channels_fastest;
  constexpr std::int64_t kRun = 16;  // neighbouring lanes that shall have neighbouring elements
  constexpr std::int64_t kSector = 32;
  Lanes best{1, 1};
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max() / 8;
  const auto consider = [&](std::int64_t channel) {
    const Lanes lanes{channel, std::max<std::int64_t>(1, std::min(kItemThreads / channel, items))};
    const std::int64_t run = channels_fastest ? channel : lanes.item;
    const bool splits_sectors = channels_fastest && channel < channel_groups && channel * group_bytes % kSector != 0;
    const std::int64_t units = lanes.units(channel_groups, items) * (run < kRun || splits_sectors ? 2 : 1);
    // Sums of more channels per block are more to write and to read: worth it only if many more threads have work.
    if (grid.leaves_sums ? 8 * units < 7 * fewest : units < fewest) {
      fewest = units;
      best = lanes;
    }
  };
  if (channels_fastest) {
    // Few at first: a block's items lie closer together then.
    for (std::int64_t parts = std::min<std::int64_t>(divide_up(channel_groups, kRun), 12); parts >= 1; --parts) {
      consider(std::min<std::int64_t>(divide_up(channel_groups, parts), kItemThreads));
    }
  } else {
    for (std::int64_t channel = 1; channel <= kItemThreads; channel *= 2) consider(channel);
  }
  return best;
}

}  // namespace

ItemWork plan_depthwise_work(const DepthwiseGrid& grid, const DepthwiseTile& tile, int blocks) {
  const std::int64_t channel_groups = std::max<std::int64_t>(divide_up(grid.channels, tile.channels), 1);
  const std::int64_t column_groups = std::max<std::int64_t>(divide_up(grid.width, tile.columns), 1);
  std::int64_t rows = 0, strips = 0, items = 0, cost = std::numeric_limits<std::int64_t>::max();
  Lanes lanes{1, 1};
  const std::int64_t height = std::max<std::int64_t>(grid.height, 1);
  std::int64_t trial_strips = 0 > grid.overlap ? height : 1;
  while (trial_strips <= height) {
    const std::int64_t trial_rows = divide_up(height, trial_strips);
    const std::int64_t trial_items = grid.batch * divide_up(height, trial_rows) * column_groups;
    const Lanes trial =
        choose_lanes(grid, channel_groups, std::max<std::int64_t>(trial_items, 1), tile.channels * grid.element_bytes);
    const std::int64_t rounds = divide_up(trial.units(channel_groups, trial_items), blocks);
    const std::int64_t trial_cost =
        rounds * (divide_up(trial_rows + grid.overlap, tile.period) * tile.period + kStripStart);
    if (trial_cost < cost) {
      cost = trial_cost;
      rows = trial_rows;
      strips = divide_up(height, trial_rows);
      items = trial_items;
      lanes = trial;
    }
    trial_strips += std::max<std::int64_t>(trial_strips / 8, 1);
  }
  if (items > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported("depthwise: " + std::to_string(items) +
                      " strips of the images, more than 2147483647: split the batch");
  }
  const std::int64_t channel_blocks = divide_up(channel_groups, lanes.channel);
  const std::int64_t most_splits = std::max<std::int64_t>(divide_up(items, lanes.item), 1);
  const std::int64_t wanted = std::clamp<std::int64_t>(blocks / channel_blocks, 1, most_splits);

  ItemWork work;
  work.channels_fastest = grid.channels_fastest;
  work.channel_lanes = static_cast<int>(lanes.channel);
  work.item_lanes = static_cast<int>(lanes.item);
  work.channel_blocks = static_cast<int>(channel_blocks);
  work.splits = static_cast<int>(divide_up(most_splits, divide_up(most_splits, wanted)));  // equal shares
  work.items = static_cast<std::uint32_t>(items);
  work.strip_rows = static_cast<int>(rows);
  work.strips = Divisor(static_cast<std::uint32_t>(strips));
  work.column_groups = Divisor(static_cast<std::uint32_t>(column_groups));
  work.by_channel_lanes = Divisor(static_cast<std::uint32_t>(lanes.channel));
  work.by_item_lanes = Divisor(static_cast<std::uint32_t>(lanes.item));
  work.by_channel_blocks = Divisor(static_cast<std::uint32_t>(channel_blocks));
  return work;
}

DepthwiseShape depthwise_shape(const Sizes& x, const Sizes& y, const Window& window) {
  const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
  DepthwiseShape shape;
  shape.batch = narrow(x[0]);
  shape.channels = narrow(y[1]);
  shape.multiplier = x[1] > 0 ? narrow(y[1] / x[1]) : 1;
  shape.input_height = narrow(x[2]);
  shape.input_width = narrow(x[3]);
  shape.output_height = narrow(y[2]);
  shape.output_width = narrow(y[3]);
  shape.kernel_height = narrow(window.kernel[0]);
  shape.kernel_width = narrow(window.kernel[1]);
  shape.stride_height = narrow(window.stride[0]);
  shape.stride_width = narrow(window.stride[1]);
  shape.dilation_height = narrow(window.dilation[0]);
  shape.dilation_width = narrow(window.dilation[1]);
  shape.padding_top = narrow(window.padding.top);
  shape.padding_left = narrow(window.padding.left);
  return shape;
}

std::string too_large_for_gpu(const Sizes& x, const Sizes& y, const Window& window) {
  constexpr std::int64_t kMost = 1 << 29;  // what is added to positions of an image stays below 2^31 too
  for (const std::int64_t size : {x[0], x[1], x[2], x[3], y[1], y[2], y[3], window.padding.left, window.padding.right,
                                  window.padding.top, window.padding.bottom, window.kernel[0] * window.dilation[0],
                                  window.kernel[1] * window.dilation[1], window.stride[0], window.stride[1]}) {
    if (size > kMost)
      return "a size of " + std::to_string(size) + " is more than the GPU kernels' " + std::to_string(kMost);
  }
  return {};
}

bool channels_join(std::int64_t count, std::initializer_list<ConstTensorView> tensors) {
  for (const ConstTensorView& tensor : tensors) {
    if (!tensor) continue;
    const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
    if (tensor.sizes[1] % count != 0 || tensor.strides[1] != 1) return false;
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(count * bytes) != 0) return false;
    for (const int axis : {0, 2, 3}) {
      if (tensor.sizes[axis] > 1 && tensor.strides[axis] % count != 0) return false;
    }
  }
  return true;
}

int joined_channels(std::initializer_list<ConstTensorView> tensors) {
  int count = 8;
  while (count > 1 && !channels_join(count, tensors)) count /= 2;
  return count;
}

bool columns_join(std::int64_t count, const ConstTensorView& tensor) {
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  if (!tensor || tensor.strides[3] != 1) return false;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(count * bytes) != 0) return false;
  for (const int axis : {0, 1, 2}) {
    if (tensor.sizes[axis] > 1 && tensor.strides[axis] % count != 0) return false;
  }
  return true;
}

bool columns_join(std::int64_t count, std::initializer_list<ConstTensorView> tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const ConstTensorView& tensor) { return !tensor || columns_join(count, tensor); });
}

}  // namespace fusedsc::gpu
