/// The tiling parameter generator of matrix products by fragments: sizes of the kernels of
/// ops/forward/pointwise/fragments other than those that are compiled with the library.
#pragma once

#include <vector>

#include "fusedsc/common/data_type.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/device_limits.h"

namespace fusedsc::tuning {

/// How activations lie in memory, of channels_last tensors.
enum class FragmentRows {
  none,   ///< as no kernel by fragments takes them
  whole,  ///< runs of 16 bytes
  packed  ///< pairs of 16-bit channels
};

/// `rows=64 columns=64 groups=1 stages=4 repeat_w=4 repeat_c=1 block_n=5`; with `depth=64` the weight comes in stages.
struct FragmentTiling {
  int rows = 64, columns = 64;     ///< positions and channels of a block
  int parts = 1;                   ///< warps that share the values of k
  int stages = 4;                  ///< under way or in use
  int depth = 0;                   ///< of a stage, where the weight comes in stages; 0: it stays
  int repeat_w = 4, repeat_c = 1;  ///< warps side by side along positions, and along channels
  int block_n = 1;  ///< blocks of a multiprocessor at the same time: the registers that a thread may have

  int warps() const { return repeat_w * repeat_c * parts; }
  int threads() const { return 32 * warps(); }
  int warp_positions() const { return rows / repeat_w; }
  int warp_channels() const { return columns / repeat_c; }

  bool operator==(const FragmentTiling&) const = default;
};

Config config_of(const FragmentTiling& tiling);
/// Whether a config is of this kind, right or wrong.
bool is_fragment_tiling(const Config& config);
/// Throws InvalidArgument where the config is no such tiling.
FragmentTiling fragment_tiling_of(const Config& config);

/// What is multiplied.
struct FragmentExtents {
  DataType dtype = DataType::float16;
  FragmentRows memory = FragmentRows::whole;
  bool is_input_gradient = false;  ///< the weight's depth comes first
  bool fused = false;              ///< there is a prologue, or whatever else the kernel can do besides
  bool has_other = false;          ///< the gradient prologue's second tensor is read
  int depth = 0, channels = 0;     ///< of a group
  int extras = 0;                  ///< tensors that an epilogue reads
};

struct FragmentResources {
  int limit_shared, limit_registers;
  int used_shared;     ///< of a block, in bytes: exactly what it is launched with
  int used_registers;  ///< sums, factors, and what the compiler takes

  bool fit() const { return used_shared <= limit_shared && used_registers <= limit_registers; }
};
FragmentResources resources_of(const FragmentTiling& tiling, const FragmentExtents& extents,
                               const DeviceLimits& limits);

/// All that fit, with as many blocks as fit a multiprocessor, of up to 8.
std::vector<FragmentTiling> fragment_tilings(const FragmentExtents& extents, const DeviceLimits& limits);

}  // namespace fusedsc::tuning
