/// The tiling parameter generator of matrix products by tiles: sizes of the kernels of ops/forward/pointwise/tiles and
/// ops/backward/pointwise/tiles other than those that are compiled with the library.
#pragma once

#include <vector>

#include "fusedsc/common/data_type.h"
#include "fusedsc/tuning/config.h"
#include "fusedsc/tuning/generator/device_limits.h"
#include "fusedsc/tuning/generator/direction.h"

namespace fusedsc::tuning {

/// As MatrixTile: `rows=64 columns=128 depth=32 groups=1 block_n=2`.
struct MatrixTiling {
  int rows = 64, columns = 64, depth = 32;
  int parts = 1;    ///< groups of warps that share the depth
  int block_n = 1;  ///< blocks of a compute unit at the same time: the registers that a thread may have

  bool operator==(const MatrixTiling&) const = default;
};

/// Threads of a block, of every such kernel (kMatrixThreads).
inline constexpr int kMatrixTilingThreads = 128;

Config config_of(const MatrixTiling& tiling);
/// Throws InvalidArgument where the config is no such tiling.
MatrixTiling matrix_tiling_of(const Config& config);

/// What is multiplied. Rows of a tile are positions where channels are neighbours, else channels; of grad_weight
/// always outputs, and columns channels.
struct MatrixExtents {
  DataType dtype = DataType::float32;
  bool tf32 = false;            ///< factors of float32 are rounded to TensorFloat-32
  bool channels_inner = false;  ///< channels are neighbours in the tensors' memory, else positions
  bool elements = false;        ///< most neighbours are no runs of 8 bytes
  int copy_stages = 1;          ///< kCopyStages of the device
  Direction direction = Direction::forward;
  bool fused = false;      ///< there is a prologue, or whatever else the kernel can do besides
  bool has_other = false;  ///< the gradient prologue's second tensor is read
};

struct MatrixResources {
  int limit_shared, limit_registers;
  int used_shared;     ///< of a block, in bytes: exactly what it is launched with
  int used_registers;  ///< sums, fragments, what is on its way where copies do not run ahead, and what the compiler
                       ///< takes

  bool fit() const { return used_shared <= limit_shared && used_registers <= limit_registers; }
};
MatrixResources resources_of(const MatrixTiling& tiling, const MatrixExtents& extents, const DeviceLimits& limits);

/// All that fit, with as many blocks as fit a unit, of up to 8.
std::vector<MatrixTiling> matrix_tilings(const MatrixExtents& extents, const DeviceLimits& limits);

}  // namespace fusedsc::tuning
