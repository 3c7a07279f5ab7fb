/// The tiling parameter generator of pointwise convolution: Liu et al., "Optimizing depthwise separable convolution on
/// DCU" (CCF Transactions on High Performance Computing, 2024), section 5.1, with their names and equations.
///
/// An output is a matrix of positions (the paper's width; of all rows and images, as a 1x1 convolution has no rows) and
/// channels. A wave has a tile of it. Input channels come in groups, and a group's channels lie on neighbouring lanes:
/// each lane multiplies what it has of one input channel (Figs. 8 and 9), and lanes are summed up in the end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/device_limits.h"
#include "fusedsc/tuning/generator/extents.h"

namespace fusedsc::tuning {

/// Table 1.
struct PointwiseTiling {
  int wave_w = 1;    ///< positions of a wave's tile
  int wave_c = 1;    ///< output channels of a wave's tile
  int wave_n = 1;    ///< waves of a block: repeat_w * repeat_c
  int repeat_w = 1;  ///< waves of a block side by side along positions
  int repeat_c = 1;  ///< likewise along channels
  int block_n = 1;   ///< blocks of a compute unit at the same time
  int group_c = 1;   ///< input channels that come at a time, on as many lanes

  bool operator==(const PointwiseTiling&) const = default;

  int threads(int wave) const { return wave_n * wave; }
  int block_positions() const { return repeat_w * wave_w; }
  int block_channels() const { return repeat_c * wave_c; }
  /// F_num: output channels whose filters a wave holds at once.
  int filters(int wave) const { return wave / group_c; }
  /// Thread_C: output channels of a thread.
  int thread_c(int wave) const { return wave_c / filters(wave); }
  /// Multiplications by elements loaded for them: Wave_W * Thread_C / (Wave_W + Thread_C).
  double intensity(int wave) const;
};

/// As the registry knows it: "group_c=8 wave_w=8 wave_c=64 ...".
Config config_of(const PointwiseTiling& tiling);
/// Throws InvalidArgument where the config is no such tiling, naming what is wrong.
PointwiseTiling pointwise_tiling_of(const Config& config);
/// Whether the config is one of these tilings at all.
bool is_pointwise_tiling(const Config& config);
/// Table 1 with values, and what follows from them on a device: a line each, for people.
std::string table_of(const PointwiseTiling& tiling, const DeviceLimits& limits);

/// What a tiling may have, and has, of a device. `accumulator`: bytes of a value that is computed with (4, or 8 of
/// float64), in which factors lie in shared memory.
struct PointwiseResources {
  int limit_shared;     ///< bytes, Eq. 1; never more than a block may have
  int limit_registers;  ///< Eq. 2; never more than a thread may have
  int used_shared;      ///< bytes, Eq. 3: what a block is launched with, exactly
  int loaded_inputs;    ///< of a thread at a time: the first term of Eq. 5
  int loaded_filters;   ///< the second
  int used_registers;   ///< Eq. 6, the paper's estimate

  bool fit() const { return used_shared <= limit_shared && used_registers <= limit_registers; }  // Eqs. 4 and 7
};
PointwiseResources resources_of(const PointwiseTiling& tiling, const DeviceLimits& limits, int accumulator = 4);

struct PointwiseExtents {
  std::int64_t positions = 0;  ///< of all images
  std::int64_t outputs = 0;    ///< channels of a group
  std::int64_t inputs = 0;     ///< likewise
  std::int64_t groups = 1;
};

/// All tilings that keep Eqs. 4 and 7, and whose lanes share out evenly.
std::vector<PointwiseTiling> pointwise_tilings(const PointwiseExtents& extents, const DeviceLimits& limits, Edges edges,
                                               int accumulator = 4);

/// Of a device with so many units: the tilings that a model of it says are the fastest, the best first. A block_n that
/// changes nothing but the limit of registers is left out, and so is what is beaten in every respect.
std::vector<PointwiseTiling> best_pointwise_tilings(const PointwiseExtents& extents, const DeviceLimits& limits,
                                                    int units, std::size_t most, int accumulator = 4);

}  // namespace fusedsc::tuning
