#include "fusedsc/tuning/generator/pointwise_tiling.h"

#include <algorithm>
#include <sstream>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr int kMostWaves = 16, kMostPositions = 64, kMostChannels = 256, kMostResults = 128;
/// What Eq. 6 leaves to the compiler.
constexpr int kCompilersRegisters = 30;

struct Parameter {
  const char* name;
  Knob knob;
  int PointwiseTiling::*value;
  const char* says;
};
constexpr Parameter kTable1[] = {
    {"Wave_W", Knob::wave_w, &PointwiseTiling::wave_w, "Output width handled by a wavefront"},
    {"Wave_C", Knob::wave_c, &PointwiseTiling::wave_c, "Output channel handled by a wavefront"},
    {"Wave_N", Knob::wave_n, &PointwiseTiling::wave_n, "No. of wavefronts in a block"},
    {"Repeat_W", Knob::repeat_w, &PointwiseTiling::repeat_w, "No. of wavefronts along width direction"},
    {"Repeat_C", Knob::repeat_c, &PointwiseTiling::repeat_c, "No. of wavefronts along channel direction"},
    {"Block_N", Knob::block_n, &PointwiseTiling::block_n, "No. of thread blocks per CU"},
    {"Group_C", Knob::group_c, &PointwiseTiling::group_c, "No. of grouped channels"},
};

/// What a model of a device says that a tiling takes, in cycles of a unit: only the order matters.
double cost_of(const PointwiseTiling& tiling, const PointwiseExtents& extents, const DeviceLimits& limits, int units) {
  const int wave = limits.wave, thread_c = tiling.thread_c(wave);
  const auto as_double = [](std::int64_t value) { return static_cast<double>(value); };
  const std::int64_t blocks = divide_up(extents.positions, tiling.block_positions()) *
                              divide_up(extents.outputs, tiling.block_channels()) * extents.groups;
  const double steps = as_double(divide_up(extents.inputs, tiling.group_c));
  const double waves = tiling.wave_n;
  // Instructions of a wave in a step: multiply-adds, loads from shared memory, loads and stores to it, a barrier.
  const double multiply_adds = tiling.wave_w * thread_c, loads = tiling.wave_w + thread_c;
  const PointwiseResources used = resources_of(tiling, limits);
  const double copies = 6.0 * (used.loaded_inputs + used.loaded_filters);
  const double step = std::max(multiply_adds + copies, 4 * loads) + 12;
  // What lanes exchange in the end, and store.
  const double finish =
      3.0 * multiply_adds + 4.0 * as_double(divide_up(std::int64_t{tiling.wave_w} * thread_c, tiling.group_c));
  constexpr double kStart = 600, kLatency = 450;
  const double issue = limits.wave == 64 ? 1.0 : 0.25;  // waves of 64 take a SIMD four cycles, which has four of them
  const double work = (steps * step + finish) * waves * issue;
  const double latency = kStart + steps * std::max(kLatency, step * std::max(waves / 4, 1.0));
  const std::int64_t resident = std::max<std::int64_t>(tiling.block_n, 1);
  const double rounds = as_double(divide_up(blocks, resident * units));
  const double each = as_double(divide_up(blocks, units));
  return std::max(rounds * latency, latency + (each - 1) * work);
}

}  // namespace

double PointwiseTiling::intensity(int wave) const {
  const double w = wave_w, t = thread_c(wave);
  return w * t / (w + t);
}

Config config_of(const PointwiseTiling& tiling) {
  Config config;
  for (const Parameter& parameter : kTable1) config[parameter.knob] = tiling.*parameter.value;
  return config;
}

bool is_pointwise_tiling(const Config& config) { return config[Knob::group_c] > 0; }

PointwiseTiling pointwise_tiling_of(const Config& config) {
  PointwiseTiling tiling;
  Config known;
  for (const Parameter& parameter : kTable1) {
    tiling.*parameter.value = known[parameter.knob] = config[parameter.knob];
    check(config[parameter.knob] > 0, "config: ", printed(config), " has no ", parameter.name,
          "; a tiling has all seven, as in ", printed(config_of({8, 64, 4, 2, 2, 2, 8})));
  }
  check(known == config, "config: ", printed(config), " has more than the seven parameters of a tiling");
  check(tiling.wave_n == tiling.repeat_w * tiling.repeat_c, "config: Wave_N is ", tiling.wave_n,
        ", which is not Repeat_W * Repeat_C = ", tiling.repeat_w * tiling.repeat_c);
  return tiling;
}

std::string table_of(const PointwiseTiling& tiling, const DeviceLimits& limits) {
  std::ostringstream text;
  const auto line = [&](const char* name, const auto& value, const char* says) {
    const std::string number = (std::ostringstream() << value).str();
    text << name << std::string(12 - std::string(name).size(), ' ') << number
         << std::string(8 - std::min<std::size_t>(number.size(), 7), ' ') << says << '\n';
  };
  for (const Parameter& parameter : kTable1) line(parameter.name, tiling.*parameter.value, parameter.says);
  const PointwiseResources resources = resources_of(tiling, limits);
  line("F_num", tiling.filters(limits.wave), "Filters that a wavefront holds at once");
  line("Thread_C", tiling.thread_c(limits.wave), "Output channels of a thread");
  line("Intensity", tiling.intensity(limits.wave), "Multiplications by loaded elements");
  line("LimitS", resources.limit_shared, "Bytes of shared memory that a block may have (Eq. 1)");
  line("UsedS", resources.used_shared, "and has (Eq. 3)");
  line("LimitR", resources.limit_registers, "Registers that a thread may have (Eq. 2)");
  line("UsedR", resources.used_registers, "and has (Eq. 6)");
  return text.str();
}

PointwiseResources resources_of(const PointwiseTiling& tiling, const DeviceLimits& limits, int accumulator) {
  const int threads = tiling.threads(limits.wave), words = accumulator / 4;
  const int inputs = tiling.block_positions() * tiling.group_c, filters = tiling.block_channels() * tiling.group_c;
  PointwiseResources resources{};
  resources.limit_shared =
      std::min(limits.shared_bytes / tiling.block_n - limits.reserved_bytes, limits.block_shared_bytes);
  resources.limit_registers =
      std::min(limits.registers / (tiling.block_n * tiling.wave_n * limits.wave), limits.thread_registers);
  resources.used_shared = accumulator * (inputs + filters) * 2;
  resources.loaded_inputs = int_divide_up(inputs, threads);
  resources.loaded_filters = int_divide_up(filters, threads);
  const int results = tiling.wave_w * tiling.thread_c(limits.wave);
  const int operands = tiling.wave_w + tiling.thread_c(limits.wave);
  resources.used_registers =
      words * (results + operands + resources.loaded_inputs + resources.loaded_filters) + kCompilersRegisters;
  return resources;
}

std::vector<PointwiseTiling> pointwise_tilings(const PointwiseExtents& extents, const DeviceLimits& limits, Edges edges,
                                               int accumulator) {
  std::vector<PointwiseTiling> tilings;
  const int wave = limits.wave;
  const std::vector<int> widths = tile_sizes(extents.positions, kMostPositions, edges);
  const std::vector<int> channels = tile_sizes(extents.outputs, kMostChannels, edges);
  const std::vector<int> groups = tile_sizes(extents.inputs, 32, edges);
  const auto suits = [&](const std::vector<int>& sizes, int size) {
    return size > sizes.back() ? false : std::binary_search(sizes.begin(), sizes.end(), size);
  };
  for (const int group_c : groups) {
    if ((group_c & (group_c - 1)) != 0) continue;  // lanes are summed up by halves
    for (const int wave_c : channels) {
      if (wave_c % (wave / group_c) != 0) continue;  // every lane has as many filters
      for (const int wave_w : widths) {
        if (wave_w * (wave_c / (wave / group_c)) > kMostResults) continue;
        for (int wave_n = 1; wave_n <= std::min(kMostWaves, limits.block_threads / wave); wave_n *= 2) {
          for (int repeat_w = 1; repeat_w <= wave_n; repeat_w *= 2) {
            const int repeat_c = wave_n / repeat_w;
            // Waves do not diverge: a block's tile follows the same rule, or is no larger than the problem.
            if (repeat_w > 1 && !suits(widths, wave_w * repeat_w) && wave_w * repeat_w <= kMostPositions) continue;
            if (repeat_c > 1 && !suits(channels, wave_c * repeat_c) && wave_c * repeat_c <= kMostChannels) continue;
            if (repeat_w > 1 && std::int64_t{wave_w} * (repeat_w - 1) >= extents.positions) continue;
            if (repeat_c > 1 && std::int64_t{wave_c} * (repeat_c - 1) >= extents.outputs) continue;
            for (int block_n = 1; block_n <= std::min(limits.waves / wave_n, limits.blocks); ++block_n) {
              const PointwiseTiling tiling{wave_w, wave_c, wave_n, repeat_w, repeat_c, block_n, group_c};
              if (resources_of(tiling, limits, accumulator).fit()) tilings.push_back(tiling);
            }
          }
        }
      }
    }
  }
  return tilings;
}

std::vector<PointwiseTiling> best_pointwise_tilings(const PointwiseExtents& extents, const DeviceLimits& limits,
                                                    int units, std::size_t most, int accumulator) {
  struct Ranked {
    double cost;
    PointwiseTiling tiling;
  };
  std::vector<Ranked> ranked;
  for (const PointwiseTiling& tiling : pointwise_tilings(extents, limits, Edges::masked, accumulator)) {
    if (tiling.wave_n * limits.wave < 64) continue;  // too few to hide anything
    const double cost = cost_of(tiling, extents, limits, units);
    if (!ranked.empty()) {
      PointwiseTiling same = ranked.back().tiling;
      same.block_n = tiling.block_n;
      if (same == tiling) {  // the tiles are the same: the better number of blocks alone
        if (cost < ranked.back().cost) ranked.back() = {cost, tiling};
        continue;
      }
    }
    ranked.push_back({cost, tiling});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) { return a.cost < b.cost; });
  std::vector<PointwiseTiling> best;
  for (const Ranked& each : ranked) {
    if (best.size() == most) break;
    best.push_back(each.tiling);
  }
  return best;
}

}  // namespace fusedsc::tuning
