#include "fusedsc/forward/depthwise/direct/depthwise_direct_plan.h"

#include <limits>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu {
namespace {

/// Whether offsets of 32 bits reach all of a tensor's elements.
bool is_compact(const ConstTensorView& tensor) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::int64_t last = 0;
  for (int axis = 0; axis < 4; ++axis) {
    if (tensor.sizes[axis] <= 1) continue;
    if (tensor.strides[axis] < 0 || tensor.strides[axis] > kMost / (tensor.sizes[axis] - 1)) return false;
    last += (tensor.sizes[axis] - 1) * tensor.strides[axis];
  }
  return last <= kMost;
}

}  // namespace

std::int64_t DirectGrid::threads(const DirectTile& tile) const {
  return batch * divide_up(channels, tile.channels) * divide_up(height, tile.rows) * width;
}

bool suits_direct(const DirectProblem& problem) {
  const ConstTensorView &from = problem.from, &to = problem.to;
  const int taps = problem.taps();
  const bool is_wide = size_of(from.dtype) > 2, spreads = to.elements() > from.elements();  // of stride 2, backward
  std::int64_t most = 0;  // multiplications of a multiprocessor
  if (problem.grid.channels_last) most = is_wide ? 115'000 : 165'000;
  else if (!spreads) most = 95'000;
  else most = taps == 9 ? 21'000 : 60'000;
  return taps * std::min(from.elements(), to.elements()) <= most * multiprocessors();
}

double direct_cost(std::int64_t threads, const DirectTile& tile, int loads, int taps, int element_bytes,
                   int multiprocessors) {
  constexpr int kSchedulers = 4, kAddresses = 200;
  const int words = std::max(1, tile.channels * element_bytes / 4);
  const int conversions = element_bytes == 2 ? tile.channels : 0;
  const int instructions =
      kAddresses + loads * (3 + words + conversions) + taps * (1 + conversions + tile.channels * tile.rows);
  const int accesses = (loads + taps) * words;  // of 128 bytes for each
  const auto warps = static_cast<double>(divide_up(divide_up(threads, 32), multiprocessors));
  return instructions + warps * std::max<double>(accesses, static_cast<double>(instructions) / kSchedulers);
}

DirectWork plan_direct_work(const DirectGrid& grid, const DirectTile& tile, int element_bytes) {
  const std::int64_t groups = grid.channels / tile.channels, row_groups = divide_up(grid.height, tile.rows);
  const std::int64_t positions = grid.batch * row_groups * grid.width;
  DirectWork work;
  work.columns = Divisor(static_cast<std::uint32_t>(grid.width));
  work.row_groups = Divisor(static_cast<std::uint32_t>(row_groups));
  if (!grid.channels_last) {
    work.items = static_cast<std::uint32_t>(positions * grid.channels);
    work.by_channels = Divisor(static_cast<std::uint32_t>(grid.channels));
    work.blocks = divide_up(work.items, kItemThreads);
    return work;
  }
  constexpr std::int64_t kRun = 128, kSector = 32;  // bytes
  const std::int64_t bytes = tile.channels * element_bytes;
  const std::int64_t most = std::min<std::int64_t>(groups, most_direct_lanes(static_cast<int>(bytes)));
  double least = 0;
  for (std::int64_t lanes = std::min(most, divide_up(kRun, bytes)); lanes <= most; ++lanes) {
    if (lanes < groups && lanes * bytes % kSector != 0 && lanes < most) continue;
    const std::int64_t item_lanes = kItemThreads / lanes, channel_blocks = divide_up(groups, lanes);
    const std::int64_t blocks = channel_blocks * divide_up(positions, item_lanes);
    // A block brings its channels' weights, which take as many accesses as a part of its threads' own.
    const double cost = static_cast<double>(blocks) * (2.0 + 1.0 / static_cast<double>(item_lanes));
    if (least > 0 && cost >= least) continue;
    least = cost;
    work.channel_lanes = static_cast<int>(lanes);
    work.item_lanes = static_cast<int>(item_lanes);
    work.by_channel_blocks = Divisor(static_cast<std::uint32_t>(channel_blocks));
    work.blocks = blocks;
  }
  work.channel_groups = static_cast<int>(groups);
  work.items = static_cast<std::uint32_t>(positions);
  work.by_channel_lanes = Divisor(static_cast<std::uint32_t>(work.channel_lanes));
  return work;
}

std::string why_no_direct(const ConstTensorView& from, const ConstTensorView& to, const Window& window) {
  const std::int64_t kernel = window.kernel[0];
  using Pair = std::array<std::int64_t, 2>;
  if ((kernel != 3 && kernel != 5 && kernel != 7) || window.kernel != Pair{kernel, kernel} ||
      window.dilation != Pair{1, 1} || from.sizes[1] != to.sizes[1]) {
    return "it is for windows of 3 x 3, 5 x 5 or 7 x 7, not dilated, without a channel multiplier";
  }
  if (from.elements() == 0 || to.elements() == 0) return "there is nothing to compute";
  if (!is_compact(from) || !is_compact(to)) return "a tensor has elements farther than 2^31 from its first";
  return {};
}

std::string why_no_direct(const ConstTensorView& from, const ConstTensorView& to, const ConstTensorView& weight,
                          const Window& window) {
  if (direct_step(weight) == 0) return "the weight is not dense";
  if (weight.elements() > std::numeric_limits<std::int32_t>::max()) return "the weight has more than 2^31 elements";
  return why_no_direct(from, to, window);
}

int direct_step(const ConstTensorView& weight) {
  const std::int64_t width = weight.sizes[3], step = weight.strides[3];
  const bool is_dense = (step == 1 || step == -1) && weight.strides[2] == step * width &&
                        (weight.sizes[0] == 1 || weight.strides[0] == weight.sizes[2] * width);
  return is_dense ? static_cast<int>(step) : 0;
}

const void* lowest_address(const ConstTensorView& weight) {
  const std::int64_t last = weight.sizes[2] * weight.sizes[3] - 1;
  const std::int64_t bytes = weight.strides[3] < 0 ? last * static_cast<std::int64_t>(size_of(weight.dtype)) : 0;
  return static_cast<const char*>(weight.data) - bytes;
}

}  // namespace fusedsc::gpu
