/// From a pointwise problem to a launch on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/common/gpu/pointwise_hopper.h"
#include "fusedsc/common/gpu/pointwise_plan.h"

namespace fusedsc::gpu::hopper {

/// A kernel that was compiled, and what for.
struct PointwiseInstance {
  using Kernel = void (*)(PointwiseParameters);
  using Memory = int (*)(int depth, int stages, bool has_other, bool has_x, bool has_added);

  DataType dtype;
  int channels, depth, groups;  ///< of a tile; values of k; groups of four warps
  bool prologue;
  EpilogueKind kind;
  Kernel kernel;
  Memory memory;
};

struct PointwiseLaunch {
  PointwiseInstance::Kernel kernel = nullptr;
  std::int64_t blocks = 0;
  int threads = 0, memory = 0;
  int depth = 64, weight_channels = 64, columns = 64;  ///< of the tiles that are copied
};

/// Whether the current device is one.
bool is_hopper();

/// Whether the copy engine can go over it: nothing lies between positions, channels are neighbours, and rows begin at
/// multiples of 16 bytes.
template <class Matrix>
bool suits_copy_engine(const Matrix& matrix) {
  return matrix.data == nullptr || (matrix.is_linear && matrix.run_bytes == 16 && matrix.first % 8 == 0);
}

/// Chooses among `instances`, cuts the work, and sets all of `parameters` but for the maps and the seams. `kernel`
/// stays null if none fits.
PointwiseLaunch plan(const PointwiseInstance* instances, std::size_t count, const PointwiseProblem& problem,
                     bool prologue, EpilogueKind kind, PointwiseParameters& parameters);

/// A tensor as `rows` rows of `columns` neighbouring 16-bit elements, in tiles.
CUtensorMap map_of(const void* data, DataType dtype, std::int64_t columns, std::int64_t rows, std::int64_t row_stride,
                   int tile_columns, int tile_rows);

/// Activations [positions][channels].
template <class Matrix>
CUtensorMap map_of(const Matrix& matrix, DataType dtype, std::int64_t channels, std::int64_t pixels, int tile_columns) {
  if (matrix.data == nullptr) return {};
  return map_of(matrix.data, dtype, channels, pixels, matrix.first, tile_columns, kTileRows);
}

}  // namespace fusedsc::gpu::hopper
