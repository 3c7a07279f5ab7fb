#include "fusedsc/tuning/generator/depthwise_tiling.h"

#include <algorithm>

#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

/// Eq. 6 leaves 30 to the compiler; these kernels take some more, for addresses of rows.
constexpr int kCompilersRegisters = 48;
/// Rows are unrolled by the period after which registers have their first roles again: so many at most, of which each
/// takes kernel^2 times columns times channels multiply-adds.
constexpr int kMostPeriod = 24, kMostUnrolled = 12000;

int bytes_of(DataType dtype) { return dtype == DataType::float64 ? 8 : dtype == DataType::float32 ? 4 : 2; }

int input_columns(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  return (tiling.columns - 1) * extents.stride + extents.kernel;
}

}  // namespace

int period_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  const int rows = ((extents.kernel - 1) / extents.stride + 1) * extents.stride;
  int period = rows;
  while (period % (tiling.ahead + 1) != 0) period += rows;
  return period;
}

Config config_of(const DepthwiseTiling& tiling) {
  return {{Knob::channels, tiling.channels},
          {Knob::columns, tiling.columns},
          {Knob::ahead, tiling.ahead},
          {Knob::block_n, tiling.block_n}};
}

DepthwiseTiling depthwise_tiling_of(const Config& config) {
  const DepthwiseTiling tiling{config[Knob::channels], config[Knob::columns], config[Knob::ahead],
                               config[Knob::block_n]};
  check(config == config_of(tiling) && tiling.channels > 0 && tiling.columns > 0 && tiling.block_n > 0, "config: \"",
        printed(config), "\" is no tiling of a depthwise convolution, as \"", printed(config_of({2, 4, 2, 4})),
        "\" is");
  return tiling;
}

bool has_rows_in_memory(const DepthwiseTiling& tiling, const DepthwiseExtents& extents) {
  return extents.copies_run_ahead && bytes_of(extents.dtype) * tiling.channels >= 4 &&
         (tiling.channels > 1 || extents.kernel > 3);
}

DepthwiseResources resources_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents,
                                const DeviceLimits& limits) {
  const int bytes = bytes_of(extents.dtype), words = bytes == 8 ? 2 : 1, channels = tiling.channels;
  const int row = input_columns(tiling, extents) * channels;
  const int live = (extents.kernel - 1) / extents.stride + 1;
  const bool in_memory = has_rows_in_memory(tiling, extents);
  DepthwiseResources resources{};
  resources.limit_shared =
      std::min(limits.shared_bytes / tiling.block_n - limits.reserved_bytes, limits.block_shared_bytes);
  constexpr int kUnit = 8;  // registers are given out by so many
  resources.limit_registers =
      std::min(limits.registers / (tiling.block_n * kDepthwiseThreads) / kUnit * kUnit, limits.thread_registers);
  resources.used_shared = in_memory ? (tiling.ahead + 1) * row * bytes * kDepthwiseThreads : 0;
  if (extents.statistics) {
    const int moments = 4 * words * (1 + 2 * channels) * kDepthwiseThreads;
    resources.used_shared = std::max(resources.used_shared, moments);
  }
  const int on_their_way = in_memory ? 0 : (tiling.ahead + 1) * (row * bytes + 3) / 4;
  resources.used_registers =
      words * (extents.kernel * extents.kernel * channels + live * tiling.columns * channels + row + 3 * channels) +
      on_their_way + kCompilersRegisters;
  return resources;
}

std::vector<DepthwiseTiling> depthwise_tilings(const DepthwiseExtents& extents, const DeviceLimits& limits) {
  std::vector<DepthwiseTiling> tilings;
  const int bytes = bytes_of(extents.dtype);
  for (int channels = 8; channels >= 1; channels /= 2) {
    if (channels > extents.joined_channels || channels * bytes > 16) continue;
    for (const int columns : {1, 2, 3, 4, 6, 8}) {
      if (columns > 1 && 2 * columns > 3 * extents.width) continue;
      for (int ahead = 0; ahead <= 6; ++ahead) {
        const DepthwiseTiling one{channels, columns, ahead, 1};
        const int period = period_of(one, extents);
        const bool in_memory = has_rows_in_memory(one, extents);
        if (period > kMostPeriod || (in_memory && ahead == 0) || (!in_memory && ahead > 3)) continue;
        if (period * extents.kernel * extents.kernel * columns * channels > kMostUnrolled * extents.stride) continue;
        // As many blocks as fit, and half of them: registers against waves.
        int most = 0;
        for (int block_n = 1; block_n <= limits.waves * limits.wave / kDepthwiseThreads; ++block_n) {
          if (resources_of({channels, columns, ahead, block_n}, extents, limits).fit()) most = block_n;
        }
        for (const int block_n : {most, (most + 1) / 2}) {
          const DepthwiseTiling tiling{channels, columns, ahead, block_n};
          if (block_n > 0 && (tilings.empty() || !(tilings.back() == tiling))) tilings.push_back(tiling);
        }
      }
    }
  }
  return tilings;
}

}  // namespace fusedsc::tuning
