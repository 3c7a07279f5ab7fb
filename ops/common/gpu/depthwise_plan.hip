#include "fusedsc/common/gpu/depthwise_plan.h"

#include <limits>

namespace fusedsc::gpu {
namespace {

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Below so many threads per multiprocessor shorter strips are worth their larger overlap.
constexpr std::int64_t kThreadsWorthHaving = 384;

struct Lanes {
  std::int64_t channel, item;
};

/// The lanes that leave the fewest threads without work; neighbouring threads' accesses shall fill whole sectors.
Lanes choose_lanes(std::int64_t channel_groups, std::int64_t items, bool channels_fastest) {
  constexpr std::int64_t kRunOfLanes = 16;
  Lanes best{1, 1};
  double best_score = -1;
  for (std::int64_t channel = std::min<std::int64_t>(channel_groups, kDepthwiseThreads); channel >= 1; --channel) {
    const std::int64_t item = std::max<std::int64_t>(1, std::min(kDepthwiseThreads / channel, items));
    const std::int64_t slots =
        divide_up(channel_groups, channel) * divide_up(std::max<std::int64_t>(items, 1), item) * kDepthwiseThreads;
    double score = static_cast<double>(channel_groups * items) / static_cast<double>(slots);
    const std::int64_t run = channels_fastest ? channel : item;
    const std::int64_t most = channels_fastest ? channel_groups : items;
    if (run < std::min(kRunOfLanes, most)) score *= 0.5;
    // Blocks as narrow as possible among equals: their items lie closest together.
    if (score >= best_score * 1.001 || (score >= best_score * 0.999 && channel >= kRunOfLanes)) {
      best_score = std::max(score, best_score);
      best = {channel, item};
    }
  }
  return best;
}

}  // namespace

DepthwiseWork plan_depthwise_work(const DepthwiseGrid& grid, const DepthwiseTile& tile, int multiprocessors) {
  const std::int64_t channel_groups = divide_up(grid.channels, tile.channels);
  const std::int64_t column_groups = std::max<std::int64_t>(divide_up(grid.width, tile.columns), 1);
  std::int64_t rows = tile.rows, strips = 1, items = 0;
  const auto cut = [&] {
    strips = std::max<std::int64_t>(divide_up(grid.height, rows), 1);
    rows = std::max<std::int64_t>(divide_up(grid.height, strips), 1);
    items = grid.batch * strips * column_groups;
  };
  cut();
  while (rows > 1 && items * channel_groups < multiprocessors * kThreadsWorthHaving) {
    rows = (rows + 1) / 2;
    cut();
  }
  if (items > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported("depthwise: " + std::to_string(items) + " strips of the images, more than 2147483647: split the batch");
  }
  const Lanes lanes = choose_lanes(channel_groups, items, grid.channels_fastest);
  const std::int64_t channel_blocks = std::max<std::int64_t>(divide_up(channel_groups, lanes.channel), 1);
  const std::int64_t most_splits = std::max<std::int64_t>(divide_up(items, lanes.item), 1);
  const std::int64_t wanted = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(multiprocessors) * grid.blocks_per_multiprocessor / channel_blocks, 1, most_splits);

  DepthwiseWork work;
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
    if (size > kMost) return "a size of " + std::to_string(size) + " is more than the GPU kernels' " + std::to_string(kMost);
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

bool columns_join(std::int64_t count, const ConstTensorView& tensor) {
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  if (!tensor || tensor.strides[3] != 1) return false;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(count * bytes) != 0) return false;
  for (const int axis : {0, 1, 2}) {
    if (tensor.sizes[axis] > 1 && tensor.strides[axis] % count != 0) return false;
  }
  return true;
}

}  // namespace fusedsc::gpu
