#include "fusedsc/forward/sparse/lists/sparse_lists_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/sparse/lists/sparse_lists_kernel.h"

namespace fusedsc::gpu {
namespace {

static_assert(kSparseRow == kPackedOutputs && kSparseRun == kMapRun && kSparseList == kMapList);

constexpr std::int64_t kMostSlots = 256;       // of a tile
constexpr std::size_t kListBytes = 48 * 1024;  // that several blocks of a multiprocessor have each, about
constexpr std::int64_t kMostInt = (1 << 30);

Divisor divisor(std::int64_t value) { return Divisor(static_cast<std::uint32_t>(value)); }

SparseAxis axis_of(const SparseArguments& a, std::size_t axis, std::int64_t tile, bool pools) {
  const Window& window = a.window;
  const std::int64_t size = a.x.sizes[2 + axis], stride = window.stride[axis], dilation = window.dilation[axis],
                     kernel = window.kernel[axis];
  SparseAxis result;
  const std::int64_t slots = pools ? (tile - 1) * a.pooling.stride[axis] + a.pooling.size[axis] : tile;
  const std::int64_t sample = std::max<std::int64_t>(std::gcd(slots > 1 ? stride : 0, kernel > 1 ? dilation : 0), 1);
  result.tile = static_cast<int>(tile);
  result.slots = static_cast<int>(slots);
  result.sample = static_cast<int>(sample);
  result.positions = static_cast<int>(((slots - 1) * stride + (kernel - 1) * dilation) / sample + 1);
  result.slot_step = slots > 1 ? static_cast<int>(stride / sample) : 0;
  result.tap_step = kernel > 1 ? static_cast<int>(dilation / sample) : 0;
  result.tile_stride = static_cast<int>(pools ? tile * a.pooling.stride[axis] : tile);
  result.x_stride = static_cast<int>(stride);
  result.padding = static_cast<int>(axis == 0 ? window.padding.top : window.padding.left);
  result.x_size = static_cast<int>(size);
  result.slots_size = static_cast<int>(axis == 0 ? window.output_height(size) : window.output_width(size));
  result.y_size = static_cast<int>(a.y.sizes[2 + axis]);
  result.kernel = static_cast<int>(kernel);
  result.pool = pools ? static_cast<int>(a.pooling.size[axis]) : 1;
  result.pool_stride = pools ? static_cast<int>(a.pooling.stride[axis]) : 1;
  return result;
}

/// Vectors of outputs that a thread has.
int vector_of(DataType dtype, bool is_aligned) { return !is_aligned ? 1 : dtype == DataType::float64 ? 2 : 4; }

int lanes_of(const SparseTiling& tiling, DataType dtype, bool is_aligned) {
  return tiling.outputs / vector_of(dtype, is_aligned);
}

bool is_aligned(const SparseArguments& a) {
  return !a.packed || reinterpret_cast<std::uintptr_t>(a.packed.data) % 16 == 0;  // else it is in the workspace
}

std::size_t shared_memory_bytes(const SparseListsParameters& p, DataType dtype, int outputs) {
  const auto bytes = [&]<class A>(A) {
    return outputs == 32   ? SparseMemory<A, 32>::bytes(p)
           : outputs == 64 ? SparseMemory<A, 64>::bytes(p)
                           : SparseMemory<A, 128>::bytes(p);
  };
  return static_cast<std::size_t>(dtype == DataType::float64 ? bytes(double()) : bytes(float()));
}

/// Slices and runs: as many slices as it takes to give all of the threads' groups a slot; then as many runs as fit.
/// False where nothing does.
bool divide_channels(SparseListsPlan& plan, DataType dtype, int lanes) {
  SparseListsParameters& p = plan.parameters;
  const int groups = p.threads / lanes, all_runs = int_divide_up(p.split_channels, kSparseRun);
  p.slices = 1;
  while (p.slices * p.slots() < groups && 2 * p.slices <= all_runs && p.slices < 16) p.slices *= 2;
  for (const std::size_t limit : {std::min(kListBytes, shared_memory_limit()), shared_memory_limit()}) {
    for (;; p.slices /= 2) {
      p.runs = std::min(int_divide_up(all_runs, p.slices), p.threads);
      while (p.runs > 1 && shared_memory_bytes(p, dtype, plan.tiling.outputs) > limit)
        p.runs = int_divide_up(p.runs, 2);
      plan.shared_memory_bytes = shared_memory_bytes(p, dtype, plan.tiling.outputs);
      if (plan.shared_memory_bytes <= limit) return true;
      if (p.slices == 1) break;
    }
  }
  return false;
}

bool fits(const SparseTiling& tiling, DataType dtype, bool is_aligned) {
  const bool is_known = tiling.outputs == 32 ||
                        (is_aligned && dtype != DataType::float64 && (tiling.outputs == 64 || tiling.outputs == 128));
  return is_known && tiling.rows >= 1 && tiling.columns >= 1 && tiling.splits >= 1 && tiling.warps >= 1 &&
         tiling.warps * 32 <= kSparseThreads;
}

[[noreturn]] void does_not_fit(const SparseTiling& tiling, const std::string& why) {
  throw Unsupported("gpu_lists: " + tuning::printed(config_of(tiling)) + ": " + why);
}

}  // namespace

tuning::Config config_of(const SparseTiling& tiling) {
  using enum tuning::Knob;
  return {{channels, tiling.outputs},
          {rows, tiling.rows},
          {columns, tiling.columns},
          {splits, tiling.splits},
          {warps, tiling.warps}};
}

SparseTiling tiling_of(const tuning::Config& config) {
  using enum tuning::Knob;
  const SparseTiling tiling{config[channels], config[rows], config[columns], config[splits], config[warps]};
  if (config != config_of(tiling)) {
    throw Unsupported("gpu_lists: it knows channels, rows, columns, splits and warps, but its config is " +
                      tuning::printed(config));
  }
  return tiling;
}

std::string why_not_sparse_lists(const SparseArguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  if (!elsewhere.empty()) return elsewhere;
  const std::int64_t rows = a.x.sizes[1] / a.groups * a.window.kernel[0] * a.window.kernel[1];
  std::int64_t most = std::max({rows * kSparseRow, a.weight.sizes[0] + kSparseRow, a.x.sizes[0]});
  for (const std::size_t axis : {0, 1}) {
    const std::int64_t side =
        a.x.sizes[2 + axis] + a.window.stride[axis] * kMostSlots + a.window.dilation[axis] * a.window.kernel[axis];
    most = std::max({most, side, a.pooling.size[axis], a.pooling.stride[axis]});
  }
  if (most > kMostInt) return "a row of the weight, or a side of the map, has more than 2^30 elements";
  try {
    plan_sparse_lists(a, {.warps = 4});
  } catch (const Unsupported&) {
    return "its kernel is too large: the values under a window do not fit shared memory, 8 channels at a time";
  }
  return {};
}

SparseListsPlan plan_sparse_lists(const SparseArguments& a, const SparseTiling& tiling) {
  SparseListsPlan plan;
  plan.tiling = tiling;
  plan.is_aligned = is_aligned(a);
  if (!fits(tiling, a.x.dtype, plan.is_aligned)) does_not_fit(tiling, "there is no such kernel");
  SparseListsParameters& p = plan.parameters;
  p.images = static_cast<int>(a.x.sizes[0]);
  p.groups = static_cast<int>(a.groups);
  p.channels = static_cast<int>(a.x.sizes[1] / a.groups);
  p.outputs = static_cast<int>(a.weight.sizes[0] / a.groups);
  p.splits = tiling.splits;
  p.split_channels = int_divide_up(divide_up(p.channels, tiling.splits), kSparseRun) * kSparseRun;
  if ((p.splits - 1) * p.split_channels >= p.channels) does_not_fit(tiling, "there are fewer channels");
  p.threads = tiling.warps * 32;
  p.compresses_y = static_cast<bool>(a.y_counts);
  const int lanes = lanes_of(tiling, a.x.dtype, plan.is_aligned);
  bool found = false;
  for (const bool pools : {true, false}) {  // in the block, if the windows of a tile fit it, or in a second pass
    if (pools && (tiling.splits > 1)) continue;
    p.rows = axis_of(a, 0, tiling.rows, pools);
    p.columns = axis_of(a, 1, tiling.columns, pools);
    if (std::int64_t{p.rows.slots} * p.columns.slots > kMostSlots) continue;
    if (!divide_channels(plan, a.x.dtype, lanes)) continue;
    plan.has_partials = tiling.splits > 1 || (!pools && a.pooling);
    found = true;
    break;
  }
  if (!found) does_not_fit(tiling, "it does not fit shared memory");
  p.lists_at_once = p.threads / p.runs;
  p.x_channels_inner = layout_of(a.x.sizes, a.x.strides) == Layout::channels_last;
  p.y_channels_inner = layout_of(a.y.sizes, a.y.strides) == Layout::channels_last;
  p.activation = a.activation;
  const std::int64_t output_tiles = divide_up(p.outputs, tiling.outputs);
  const auto tiles = [&](const SparseAxis& axis) {
    return divide_up(plan.has_partials ? axis.slots_size : axis.y_size, axis.tile);
  };
  const std::int64_t row_tiles = tiles(p.rows), column_tiles = tiles(p.columns);
  plan.blocks = output_tiles * column_tiles * row_tiles * p.splits * p.groups * p.images;
  if (plan.blocks > kMostInt) does_not_fit(tiling, "there are too many blocks");
  p.row_tiles = static_cast<int>(row_tiles);
  p.column_tiles = static_cast<int>(column_tiles);
  p.by_output_tiles = divisor(output_tiles);
  p.by_column_tiles = divisor(column_tiles);
  p.by_row_tiles = divisor(row_tiles);
  p.by_splits = divisor(p.splits);
  p.by_groups = divisor(p.groups);
  p.by_slots = divisor(p.slots());
  p.by_slot_columns = divisor(p.columns.slots);
  p.by_positions = divisor(p.positions());
  p.by_position_columns = divisor(p.columns.positions);
  p.by_lists_at_once = divisor(p.lists_at_once);
  p.by_runs = divisor(p.runs);
  p.by_finished = divisor(p.rows.tile * p.columns.tile);
  p.by_tile_columns = divisor(p.columns.tile);
  if (!plan.has_partials) return plan;
  SparseFinishParameters& f = plan.finish;
  f.images = p.images;
  f.outputs = p.groups * p.outputs;
  f.splits = p.splits;
  f.slot_rows = p.rows.slots_size;
  f.slot_columns = p.columns.slots_size;
  f.y_rows = p.rows.y_size;
  f.y_columns = p.columns.y_size;
  f.y_runs = p.compresses_y ? static_cast<int>(compressed_channels(f.outputs)) / kSparseRun : 0;
  const int items = p.compresses_y ? f.y_runs : f.outputs;
  f.items = std::int64_t{f.images} * f.y_rows * f.y_columns * items;
  f.by_items = divisor(items);
  f.by_columns = divisor(f.y_columns);
  f.by_rows = divisor(f.y_rows);
  f.pool_rows = static_cast<int>(a.pooling.size[0]);
  f.pool_columns = static_cast<int>(a.pooling.size[1]);
  f.pool_row_stride = static_cast<int>(a.pooling.stride[0]);
  f.pool_column_stride = static_cast<int>(a.pooling.stride[1]);
  f.activation = a.activation;
  plan.partials = std::int64_t{f.splits} * f.images * f.slot_rows * f.slot_columns * f.outputs;
  return plan;
}

std::vector<SparseTiling> sparse_tilings(const SparseArguments& a) {
  std::vector<SparseTiling> all;
  const auto sides = [](std::int64_t size) {
    std::vector<int> some;
    for (const int side : {1, 2, 4, 7, 8, 14, 16}) {
      if (side < size || (side == 1 && size == 1)) some.push_back(side);
    }
    if (size <= 16 && size > 1) some.push_back(static_cast<int>(size));
    return some;
  };
  const std::int64_t outputs = a.weight.sizes[0] / a.groups;
  for (const int block_outputs : {32, 64, 128}) {
    if (block_outputs > 32 && block_outputs / 2 >= outputs) continue;
    for (const int splits : {1, 2, 4, 8, 16}) {
      const bool pools = splits == 1;
      const std::int64_t height = pools ? a.y.sizes[2] : a.window.output_height(a.x.sizes[2]);
      const std::int64_t width = pools ? a.y.sizes[3] : a.window.output_width(a.x.sizes[3]);
      for (const int rows : sides(height)) {
        for (const int columns : sides(width)) {
          if (rows > columns) continue;
          for (const int warps : {4, 8, 16}) {
            const SparseTiling tiling{block_outputs, rows, columns, splits, warps};
            try {
              plan_sparse_lists(a, tiling);
              all.push_back(tiling);
            } catch (const Unsupported&) {  // does not fit
            }
          }
        }
      }
    }
  }
  if (all.empty()) all.push_back({.warps = 4});
  return all;
}

double sparse_cost(const SparseListsPlan& plan, int multiprocessors) {
  constexpr double kShare = 0.125;                                                     // of values that are not zero
  constexpr double kLaunch = 2000, kPass = 2200, kRound = 500, kList = 40, kRow = 60;  // latencies
  constexpr double kCacheBytes = 110, kSharedBytes = 4500, kMemoryBytes = 2500;        // per nanosecond
  const SparseListsParameters& p = plan.parameters;
  const double blocks = static_cast<double>(plan.blocks), taps = p.taps(), slots = p.slots();
  const double by_memory = 227.0 * 1024 / (static_cast<double>(plan.shared_memory_bytes) + 1024);
  const double resident = std::max(1.0, std::min({std::floor(by_memory), 1024.0 / p.threads, 16.0}));
  const double each = std::ceil(blocks / multiprocessors);
  const double turns = std::ceil(each / resident);
  const double slabs = std::ceil(static_cast<double>(p.split_channels) / p.slab());
  const double rounds = std::ceil(static_cast<double>(p.lists()) / p.lists_at_once);
  const double groups = p.threads * 4.0 / plan.tiling.outputs;
  const double turns_of_groups = std::ceil(p.slices * slots / groups);
  const double list = p.list_size() * kShare, row_bytes = plan.tiling.outputs * 4.0;
  const double latency =
      slabs * (rounds * kRound + 100 + turns_of_groups * taps * (kList + std::ceil(list / 4) * kRow));
  const double products = slots * taps * p.split_channels * kShare;  // rows that a block multiplies with
  const double in_cache = each * products * row_bytes / kCacheBytes;
  const double used = 1 - std::pow(1 - kShare, slots);  // of the rows of the weight, by some slot
  const double from_shared = blocks * std::min(products, p.split_channels * taps * used) * row_bytes / kSharedBytes;
  double time = kLaunch + std::max({turns * latency, in_cache + latency / 2, from_shared + latency / 2});
  if (plan.has_partials) time += kPass + static_cast<double>(plan.partials) * 8 / kMemoryBytes;
  return time;
}

}  // namespace fusedsc::gpu
