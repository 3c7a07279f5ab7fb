#include "fusedsc/forward/depthwise/windows/depthwise_windows_plan.h"

#include <algorithm>
#include <numeric>

#include "fusedsc/common/divide_up.h"

namespace fusedsc::gpu {
namespace {

constexpr int round_up(int a, int b) { return (a + b - 1) / b * b; }

/// Sizes that no shared memory has are all the same, so that none of them overflows.
int narrow(std::int64_t size) { return static_cast<int>(std::min<std::int64_t>(size, 1 << 28)); }

/// Such that runs of four of eight neighbouring channels lie on different banks.
int spread(std::int64_t plane) { return round_up(narrow(plane) - kWindowColumns, 2 * kWindowColumns) + kWindowColumns; }

/// Of the item lanes, those side by side in a row of places: as many rounds as it takes, each as full as can be.
int column_lanes_of(int item_lanes, int pitch) {
  return static_cast<int>(divide_up(pitch, divide_up(pitch, item_lanes)));
}

// Cycles, roughly; only their proportions matter.
constexpr double kLoadLatency = 800, kPlacesStart = 30, kTileLatency = 1500;
constexpr std::size_t kSharedMemoryOfSystem = 1024;

/// Of so many blocks of a multiprocessor, how much of the time it has an instruction to issue, as a share of the most.
double issued_by(std::int64_t blocks) {
  constexpr double kShares[] = {0.5, 0.8, 0.93, 1};
  return kShares[std::min<std::int64_t>(blocks, 4) - 1];
}

struct Estimate {
  double time;
  std::int64_t tiles;
};

/// Item lanes of the threads that bring a tile.
int bring_lanes_of(const WindowCut& cut) {
  return cut.vector == 1 ? cut.item_lanes : std::min(kWindowThreads * cut.vector / cut.channel_lanes, kWindowThreads);
}

Estimate estimate(const WindowGrid& grid, const WindowCut& cut, int processors) {
  const int column_lanes = column_lanes_of(bring_lanes_of(cut), cut.places.used);
  const int row_lanes = std::max(bring_lanes_of(cut) / column_lanes, 1);
  const int at_once = cut.vector == 1 ? 8 : 2;
  const double place_cost = cut.vector == 1 ? 11 : 20;
  const auto rounds =
      static_cast<double>(divide_up(cut.places.channels, cut.channel_lanes) * divide_up(cut.places.used, column_lanes));
  const auto batches =
      static_cast<double>(cut.row_parts * divide_up(cut.places.rows, std::int64_t{at_once} * row_lanes));
  const double bring = rounds * (kPlacesStart + batches * at_once * place_cost);
  const auto item_rounds = static_cast<double>(divide_up(cut.items, cut.item_lanes));
  const double instructions = bring + item_rounds * cut.item_cost + cut.extra_cost;
  const double latency =
      rounds * batches * kLoadLatency + (item_rounds * cut.item_cost + cut.extra_cost) * 2 + kTileLatency;
  const std::int64_t tiles =
      grid.batch * grid.row_phases * divide_up(grid.rows, cut.rows) * divide_up(grid.columns, cut.columns);
  const std::int64_t units = tiles * divide_up(grid.channels, cut.channel_lanes) * cut.blocks;
  const auto blocks = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(shared_memory_limit() / (cut.bytes + kSharedMemoryOfSystem)), 1, grid.most_blocks);
  const double warps = kWindowThreads / 32.0 / 4;  // of a scheduler
  const double round = std::max(static_cast<double>(blocks) * warps * instructions / issued_by(blocks), latency);
  return {static_cast<double>(divide_up(units, blocks * processors)) * round, tiles};
}

}  // namespace

WindowAxis window_axis(const Window& window, int axis, std::int64_t padding, std::int64_t input, std::int64_t output) {
  const auto at = static_cast<std::size_t>(axis);
  WindowAxis result;
  result.kernel = static_cast<int>(window.kernel[at]);
  result.stride = static_cast<int>(window.stride[at]);
  result.dilation = static_cast<int>(window.dilation[at]);
  result.padding = static_cast<int>(padding);
  result.input = static_cast<int>(input);
  result.output = static_cast<int>(output);
  const int divisor = std::gcd(result.stride, result.dilation);
  result.phases = result.dilation / divisor;
  result.period = result.phases * result.stride;
  result.parts = std::min(result.stride / divisor, result.kernel);
  result.reach = static_cast<int>(divide_up(result.kernel, result.parts));
  result.long_parts = result.kernel - result.parts * (result.reach - 1);
  result.by_parts = Divisor(static_cast<std::uint32_t>(result.parts));
  return result;
}

bool windows_join(std::initializer_list<ConstTensorView> tensors) {
  return tensors.begin()->dtype != DataType::float64 && channels_join(kWindowVector, tensors);
}

WindowPlaces window_places(int channels, int row_parts, int rows, int segments, int columns, int reach) {
  WindowPlaces places;
  places.rows = rows;
  places.segment = columns + round_up(reach, kWindowTaps);
  places.used = narrow(std::int64_t{segments} * places.segment);
  places.pitch = round_up(places.used - kWindowColumns, 2 * kWindowColumns) + kWindowColumns;
  places.plane = spread(std::int64_t{row_parts} * rows * places.pitch);
  places.channels = channels;
  places.by_segment = Divisor(static_cast<std::uint32_t>(places.segment));
  return places;
}

WindowSums window_sums(int rows, int columns) {
  WindowSums sums;
  sums.pitch = columns;
  sums.plane = spread(std::int64_t{rows} * columns);
  sums.groups = Divisor(static_cast<std::uint32_t>(columns / kWindowColumns));
  sums.items = rows * (columns / kWindowColumns);
  return sums;
}

WindowWeights window_weights(const WindowAxis& rows, const WindowAxis& columns, int channels) {
  WindowWeights weights;
  weights.run = round_up(columns.reach, kWindowTaps);
  weights.plane = spread(std::int64_t{rows.parts} * rows.reach * narrow(std::int64_t{columns.parts} * weights.run));
  weights.channels = channels;
  return weights;
}

double window_taps_cost(const WindowAxis& rows, const WindowAxis& columns) {
  return columns.parts * (15.0 + rows.kernel * (6.0 + static_cast<double>(divide_up(columns.reach, kWindowTaps)) * 22));
}

std::vector<WindowCandidate> window_candidates(const WindowGrid& grid,
                                               const std::function<void(WindowCut&)>& describe) {
  constexpr int kLeastLanes = 8;  // neighbouring channels of a block, where they lie side by side: longer runs of bytes
  const int channels = static_cast<int>(std::clamp<std::int64_t>(grid.channels, 1, kWindowThreads));
  const int processors = multiprocessors();
  std::vector<WindowCandidate> candidates;
  const auto consider = [&](int channel_lanes, int rows, int columns) {
    WindowCut cut;
    cut.channel_lanes = channel_lanes;
    cut.item_lanes = kWindowThreads / channel_lanes;
    cut.rows = rows;
    cut.columns = columns;
    if (grid.channels_join && channel_lanes % kWindowVector == 0) cut.vector = kWindowVector;
    describe(cut);
    if (cut.bytes > shared_memory_limit()) return false;
    const Estimate estimated = estimate(grid, cut, processors);
    candidates.push_back({cut, estimated.time, estimated.tiles});
    return true;
  };
  const auto consider_lanes = [&](int channel_lanes) {
    // The widest tiles that fit: narrower ones bring more twice.
    for (int strips = 1;; strips *= 2) {
      const int columns = round_up(static_cast<int>(divide_up(std::max(grid.columns, 1), strips)), kWindowColumns);
      bool fits = false;
      const int height = std::max(grid.rows, 1);
      for (int row_strips = 1; row_strips <= height; row_strips += std::max(row_strips / 4, 1)) {
        const auto rows = static_cast<int>(divide_up(height, row_strips));
        fits = consider(channel_lanes, rows, columns) || fits;
      }
      fits = consider(channel_lanes, 1, columns) || fits;
      if (fits || columns == kWindowColumns) return;
    }
  };
  for (int lanes = 1; lanes < channels; lanes *= 2) {
    if (!grid.channels_fastest || lanes >= kLeastLanes) consider_lanes(lanes);
  }
  consider_lanes(channels);
  for (int lanes = 1; lanes < channels && candidates.empty(); lanes *= 2) {  // rather with short runs than not at all
    consider_lanes(lanes);
  }
  return candidates;
}

namespace {

tuning::Config config_of(const WindowCut& cut) {
  using enum tuning::Knob;
  return {{channels, cut.channel_lanes}, {rows, cut.rows}, {columns, cut.columns}};
}

}  // namespace

tuning::Configs window_configs(const std::vector<WindowCandidate>& candidates) {
  tuning::Configs configs;
  for (const WindowCandidate& candidate : candidates) {
    const tuning::Config config = config_of(candidate.cut);
    if (std::find(configs.begin(), configs.end(), config) == configs.end()) configs.push_back(config);
  }
  return configs;
}

tuning::Config window_prior_config(const std::vector<WindowCandidate>& candidates) {
  const auto faster = [](const WindowCandidate& a, const WindowCandidate& b) { return a.time < b.time; };
  return config_of(std::min_element(candidates.begin(), candidates.end(), faster)->cut);
}

const WindowCandidate& window_candidate(const char* name, const std::vector<WindowCandidate>& candidates,
                                        const tuning::Config& config) {
  for (const WindowCandidate& candidate : candidates) {
    if (config_of(candidate.cut) == config) return candidate;
  }
  throw Unsupported(std::string(name) + ": a tile of " + tuning::printed(config) +
                    " does not fit shared memory, or is larger than the images");
}

WindowPlan plan_windows(const WindowGrid& grid, int column_classes, const WindowCandidate& candidate, int resident) {
  const WindowCut& cut = candidate.cut;
  if (candidate.tiles > std::numeric_limits<std::int32_t>::max()) {
    throw Unsupported("depthwise: " + std::to_string(candidate.tiles) +
                      " tiles of the images, more than 2147483647: split the batch");
  }
  const std::int64_t channel_blocks = std::max<std::int64_t>(divide_up(grid.channels, cut.channel_lanes), 1);
  const std::int64_t tiles = std::max<std::int64_t>(candidate.tiles, 1);
  const std::int64_t wanted = std::clamp<std::int64_t>(resident / (channel_blocks * cut.blocks), 1, tiles);
  WindowPlan plan;
  ItemWork& work = plan.work;
  work.channels_fastest = grid.channels_fastest;
  work.channel_lanes = cut.channel_lanes;
  work.item_lanes = cut.item_lanes;
  work.channel_blocks = static_cast<int>(channel_blocks);
  work.splits = static_cast<int>(divide_up(tiles, divide_up(tiles, wanted)));  // equal shares
  work.items = static_cast<std::uint32_t>(candidate.tiles);
  work.by_channel_lanes = Divisor(static_cast<std::uint32_t>(cut.channel_lanes));
  work.by_item_lanes = Divisor(static_cast<std::uint32_t>(cut.item_lanes));
  work.by_channel_blocks = Divisor(static_cast<std::uint32_t>(channel_blocks));

  const auto divisor = [](std::int64_t count) {
    return Divisor(static_cast<std::uint32_t>(std::max<std::int64_t>(count, 1)));
  };
  WindowTile& tile = plan.tile;
  tile.rows = cut.rows;
  tile.columns = cut.columns;
  tile.column_strips = divisor(divide_up(grid.columns, cut.columns));
  tile.row_strips = divisor(divide_up(grid.rows, cut.rows));
  tile.row_phases = divisor(grid.row_phases);
  tile.groups = divisor(cut.columns / kWindowColumns);
  tile.classes = divisor(column_classes);
  tile.items = cut.items;
  tile.vector = cut.vector;
  tile.channel_groups = cut.channel_lanes / cut.vector;
  tile.by_channel_groups = divisor(tile.channel_groups);
  tile.column_lanes = column_lanes_of(bring_lanes_of(cut), cut.places.used);
  tile.row_lanes = std::max(bring_lanes_of(cut) / tile.column_lanes, 1);
  tile.by_column_lanes = divisor(tile.column_lanes);
  return plan;
}

}  // namespace fusedsc::gpu
