/// The tiling parameter generator of depthwise convolution: counterparts of the pointwise parameters for the row data
/// reuse of Liu et al., "Optimizing depthwise separable convolution on DCU", section 4.2 and Algorithm 1. A thread has
/// some neighbouring channels and columns, goes down the rows, and keeps the sums of all rows whose windows overlap.
/// Its gradients are the same the other way round: sums of rows of grad_x, or sums of taps beside rows of grad_y.
#pragma once

#include <cstdint>
#include <vector>

#include "fusedsc/common/data_type.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/device_limits.h"
#include "fusedsc/tuning/generator/direction.h"

namespace fusedsc::tuning {

struct DepthwiseTiling {
  int channels = 1;  ///< neighbouring ones of a thread, loaded as one vector
  int columns = 1;   ///< of a thread, of the output; of the input's gradient in strides
  int ahead = 1;     ///< rows that are asked for ahead of their use
  int block_n = 1;   ///< blocks of a compute unit at the same time: the registers that a thread may have

  bool operator==(const DepthwiseTiling&) const = default;
};

/// Threads of a block, of every such kernel (kItemThreads).
inline constexpr int kDepthwiseThreads = 128;

Config config_of(const DepthwiseTiling& tiling);
/// Throws InvalidArgument where the config is no such tiling.
DepthwiseTiling depthwise_tiling_of(const Config& config);

struct DepthwiseExtents {
  DataType dtype = DataType::float32;
  int kernel = 3, stride = 1;    ///< of both axes
  int width = 1;                 ///< of what threads have columns of
  int joined_channels = 1;       ///< neighbouring channels that can be loaded as one vector
  bool statistics = false;       ///< are left; of the input's gradient, BatchNorm's sums
  bool copies_run_ahead = true;  ///< rows on their way lie in shared memory, as on NVIDIA's GPUs; else in registers
  Direction direction = Direction::forward;
  bool fused = false;  ///< of gradients: with a prologue, a gradient prologue or an added tensor
};

struct DepthwiseResources {
  int limit_shared, limit_registers;  ///< Eqs. 1 and 2
  int used_shared;                    ///< of a block, in bytes: exactly what it is launched with
  int used_registers;                 ///< weights, sums, a row, rows on their way, and what the compiler takes (Eq. 6)

  bool fit() const { return used_shared <= limit_shared && used_registers <= limit_registers; }
};
DepthwiseResources resources_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents,
                                const DeviceLimits& limits);

/// Whether rows on their way lie in shared memory (kRowsInMemory of depthwise_rows.h).
bool has_rows_in_memory(const DepthwiseTiling& tiling, const DepthwiseExtents& extents);

/// Rows after which all registers have their first roles again: the kernel is unrolled by them. Rows of the input; of
/// the input's gradient, of grad_y.
int period_of(const DepthwiseTiling& tiling, const DepthwiseExtents& extents);

/// All that fit, wide vectors first.
std::vector<DepthwiseTiling> depthwise_tilings(const DepthwiseExtents& extents, const DeviceLimits& limits);

}  // namespace fusedsc::tuning
