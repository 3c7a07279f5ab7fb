#include "fusedsc/tuning/generator/matrix_tiling.h"

#include <algorithm>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"

namespace fusedsc::tuning {
namespace {

constexpr int kThreads = kMatrixTilingThreads, kWarps = kThreads / 32, kMostBlocks = 8;
constexpr int kMostRegisters = 256;  // of those that any instruction can have

int bytes_of(DataType dtype) { return static_cast<int>(size_of(dtype)); }
int accumulator_of(DataType dtype) { return std::max(bytes_of(dtype), 4); }

/// What OperandTile says of rows or columns: `outer` of them.
struct Operand {
  int outer;
  bool depth_inner;  ///< in its tensor
  bool transposes;   ///< copies do
  int tensors;
  int by_depth, by_outer;  ///< vectors of coefficients
};

struct Operands {
  Operand rows, columns;
};

Operands operands_of(const MatrixTiling& tiling, const MatrixExtents& extents) {
  const bool inner = extents.channels_inner, is_forward = extents.direction == Direction::forward;
  const bool may_transpose = extents.copy_stages > 1 && bytes_of(extents.dtype) == 4 && !extents.tf32;
  const int tensors = extents.fused && extents.has_other ? 2 : 1, coefficients = extents.fused ? 3 : 0;
  if (extents.direction == Direction::grad_weight) {
    const auto operand = [&](int outer, int its_tensors) {
      return Operand{outer, !inner, may_transpose && extents.elements && !inner, its_tensors, 0, coefficients};
    };
    return {operand(tiling.rows, tensors), operand(tiling.columns, 1)};
  }
  const int positions = inner ? tiling.rows : tiling.columns, channels = inner ? tiling.columns : tiling.rows;
  const Operand activations{positions, inner, may_transpose && extents.elements && inner, tensors, coefficients, 0};
  const Operand weight{channels, is_forward, may_transpose && is_forward, 1, 0, 0};
  if (inner) return {activations, weight};
  return {weight, activations};
}

/// Of all of an operand's tensors in a stage.
int stage_bytes(const Operand& operand, const MatrixTiling& tiling, const MatrixExtents& extents) {
  const int size = bytes_of(extents.dtype);
  const bool depth_inner = operand.depth_inner && !operand.transposes;
  const int major = depth_inner ? operand.outer : tiling.depth, minor = depth_inner ? tiling.depth : operand.outer;
  const int pitch = extents.tf32 && depth_inner ? minor : minor + 16 / size;
  return operand.tensors * major * pitch * size + operand.by_depth * tiling.depth * accumulator_of(extents.dtype);
}

/// Warps of a part along rows: Tf32Product.
int tf32_warp_rows(const MatrixTiling& tiling) {
  const int warps = kWarps / tiling.parts;
  return tiling.rows >= 2 * tiling.columns ? warps : warps < 4 || tiling.rows == 32 ? 1 : 2;
}

/// Whether whoever computed sums finishes them, without shared memory.
bool keeps_sums(const MatrixTiling& tiling, const MatrixExtents& extents) {
  return extents.tf32 && tiling.parts == 1 && (extents.direction == Direction::grad_weight || !extents.elements);
}

/// Else what comes next is on its way to registers.
bool copies_run_ahead(const MatrixExtents& extents) {
  return extents.copy_stages > 1 && (!extents.elements || (bytes_of(extents.dtype) >= 4 && !extents.tf32));
}

/// What a sink needs in the end: sums of each channel, of each of the threads that meet it.
int finish_bytes(const MatrixTiling& tiling, const MatrixExtents& extents) {
  if (extents.direction == Direction::grad_weight || !(extents.fused || extents.elements)) return 0;
  const bool inner = extents.channels_inner;
  const int channels = inner ? tiling.columns : tiling.rows, size = bytes_of(extents.dtype);
  const int vectors = extents.direction == Direction::forward ? 3 : 2;
  const int runs = tiling.columns * size / 16, warp_rows = tf32_warp_rows(tiling);
  const int of_runs = inner ? kThreads / runs : runs;
  const int of_fragments = inner ? 8 * warp_rows : 4 * (kWarps / tiling.parts / warp_rows);
  if (extents.elements) return inner ? accumulator_of(extents.dtype) * vectors * kThreads : 0;
  return accumulator_of(extents.dtype) * vectors * channels * (keeps_sums(tiling, extents) ? of_fragments : of_runs);
}

/// Values of each channel that a sink of elements keeps in shared memory, behind all else.
int sink_bytes(const MatrixTiling& tiling, const MatrixExtents& extents) {
  if (!extents.elements || extents.channels_inner || extents.direction == Direction::grad_weight) return 0;
  const int vectors = extents.direction == Direction::forward ? 6 : 5;
  return accumulator_of(extents.dtype) * vectors * tiling.rows;
}

/// What TileLoop and the product's kernel add up to.
int shared_bytes(const MatrixTiling& tiling, const MatrixExtents& extents) {
  const Operands operands = operands_of(tiling, extents);
  const int accumulator = accumulator_of(extents.dtype);
  const int fixed = accumulator * (operands.rows.by_outer * tiling.rows + operands.columns.by_outer * tiling.columns);
  const int stage = stage_bytes(operands.rows, tiling, extents) + stage_bytes(operands.columns, tiling, extents);
  const int sums = keeps_sums(tiling, extents) ? 0 : tiling.parts * tiling.rows * (tiling.columns + 4) * accumulator;
  const int loop = extents.copy_stages == 1 ? std::max(stage, sums)
                                            : sums + (copies_run_ahead(extents) ? extents.copy_stages : 1) * stage;
  return std::max(fixed + loop + sink_bytes(tiling, extents), finish_bytes(tiling, extents));
}

/// Copies in whole turns of all threads.
bool is_copied(const Operand& operand, const MatrixTiling& tiling, const MatrixExtents& extents) {
  const int run = 16 / bytes_of(extents.dtype);
  const int minor = operand.depth_inner ? tiling.depth : operand.outer;
  const int major = operand.depth_inner ? operand.outer : tiling.depth;
  for (const int each : {run, std::max(run / 2, 1)}) {
    if (minor / each > kThreads || kThreads % (minor / each) != 0) return false;
    if (major % (kThreads / (minor / each)) != 0) return false;
  }
  return true;
}

/// Of fused multiply-adds: rows and columns of a thread, and the threads that have others (FmaProduct).
struct Grid {
  int rows, columns, of_rows, of_columns;

  bool is_whole(const MatrixTiling& tiling) const {
    return rows > 0 && columns > 0 && rows * of_rows == tiling.rows && columns * of_columns == tiling.columns;
  }
};
Grid grid_of(const MatrixTiling& tiling) {
  const int warps = kWarps / tiling.parts;
  const int of_columns = 8 * (warps > 1 && tiling.columns / 8 >= 2 * tiling.rows / (4 * warps) ? 2 : 1);
  const int of_rows = 32 * warps / of_columns;
  return {tiling.rows / of_rows, tiling.columns / of_columns, of_rows, of_columns};
}

/// Of AMD's matrix cores: two waves, 16 values of k at a time, and squares whose neighbours are loaded and stored as
/// one vector of up to 16 bytes, where they are neighbours in shared memory (MatrixCoreProduct).
bool suits_matrix_cores(const MatrixTiling& tiling, const Operands& operands, const MatrixExtents& extents) {
  constexpr int kWaves = kThreads / 64, kSide = 16, kVector = 16;
  const int parts = std::min(tiling.parts, kWaves), waves = kWaves / parts;
  const bool cuts_rows = tiling.rows >= tiling.columns;
  const int row_squares = tiling.rows / (cuts_rows ? waves : 1) / kSide;
  const int column_squares = tiling.columns / (cuts_rows ? 1 : waves) / kSide;
  const auto fits = [&](const Operand& operand, int squares, int bytes) {
    return (operand.depth_inner && !operand.transposes) || squares * bytes <= kVector;
  };
  return tiling.depth / parts % kSide == 0 && fits(operands.rows, row_squares, bytes_of(extents.dtype)) &&
         fits(operands.columns, column_squares, accumulator_of(extents.dtype));
}

/// Whether the templates take it: besides copies, stores in whole turns and fragments of whole instructions.
bool is_tile(const MatrixTiling& tiling, const MatrixExtents& extents) {
  const int size = bytes_of(extents.dtype), warps = kWarps / tiling.parts, rows = tiling.rows, columns = tiling.columns;
  const Operands operands = operands_of(tiling, extents);
  if (!is_copied(operands.rows, tiling, extents) || !is_copied(operands.columns, tiling, extents)) return false;
  if (tiling.depth / tiling.parts % (size == 2 ? 16 : 8) != 0) return false;
  if (extents.tf32) {
    const int warp_rows = tf32_warp_rows(tiling), warp_columns = warps / warp_rows;
    return tiling.depth == 32 && rows == 32 * warp_rows && columns % (32 * warp_columns) == 0;
  }
  if (!suits_matrix_cores(tiling, operands, extents)) return false;
  const int runs = columns * size / 16;
  if (kThreads % runs != 0 || rows % (kThreads / runs) != 0) return false;
  const int warp_rows = rows >= 2 * columns ? warps : warps < 4 ? warps : 2;
  if (size == 2) return rows / warp_rows % 16 == 0 && columns / (warps / warp_rows) % 16 == 0;
  const Grid grid = grid_of(tiling);
  return grid.is_whole(tiling) && grid.rows * grid.columns <= 64;
}

/// Fitted to what nvrtc 13 makes for sm_90.
int registers_of(const MatrixTiling& tiling, const MatrixExtents& extents) {
  const int size = bytes_of(extents.dtype), words = accumulator_of(extents.dtype) / 4;
  const int sums = words * tiling.rows * tiling.columns * tiling.parts / kThreads;
  constexpr int kOfKernel = 96, kOfFusion = 40, kOfFusedElements = 56, kOfDoubles = 8, kOfKeptSums = 40;
  int registers = kOfKernel + sums;
  if (extents.fused) registers += extents.elements ? kOfFusedElements : kOfFusion;
  if (size == 8) registers += kOfDoubles;
  if (keeps_sums(tiling, extents)) registers += kOfKeptSums;  // whose stores are unrolled
  if (size >= 4 && !extents.tf32) {
    const Grid grid = grid_of(tiling);
    registers += 2 * words * (grid.rows + grid.columns);  // factors
  }
  const Operands operands = operands_of(tiling, extents);
  int copied = 0;  // bytes of a thread in a stage
  for (const Operand& operand : {operands.rows, operands.columns}) {
    copied += operand.tensors * operand.outer * tiling.depth * size / kThreads;
  }
  // Addresses of runs of 16 bytes; or the elements themselves are on their way in registers.
  return registers + (copies_run_ahead(extents) ? 3 * copied / 32 : copied / 4);
}

}  // namespace

Config config_of(const MatrixTiling& tiling) {
  return {{Knob::rows, tiling.rows},
          {Knob::columns, tiling.columns},
          {Knob::depth, tiling.depth},
          {Knob::groups, tiling.parts},
          {Knob::block_n, tiling.block_n}};
}

MatrixTiling matrix_tiling_of(const Config& config) {
  const MatrixTiling tiling{config[Knob::rows], config[Knob::columns], config[Knob::depth], config[Knob::groups],
                            config[Knob::block_n]};
  const auto is_whole = [](int value) { return value > 0; };
  check(config == config_of(tiling) && is_whole(tiling.rows) && is_whole(tiling.columns) && is_whole(tiling.depth) &&
            is_whole(tiling.parts) && is_whole(tiling.block_n),
        "config: \"", printed(config), "\" is no tiling of a matrix product, as \"", printed(config_of(MatrixTiling())),
        "\" is");
  return tiling;
}

MatrixResources resources_of(const MatrixTiling& tiling, const MatrixExtents& extents, const DeviceLimits& limits) {
  return {std::min(limits.shared_bytes / tiling.block_n - limits.reserved_bytes, limits.block_shared_bytes),
          std::min({limits.registers / (tiling.block_n * kThreads), limits.thread_registers, kMostRegisters}),
          shared_bytes(tiling, extents), registers_of(tiling, extents)};
}

std::vector<MatrixTiling> matrix_tilings(const MatrixExtents& extents, const DeviceLimits& limits) {
  std::vector<MatrixTiling> tilings;
  for (const int parts : {1, 2, 4}) {
    for (const int rows : {32, 64, 128}) {
      for (const int columns : {32, 64, 128}) {
        for (const int depth : {16, 32, 64, 128}) {
          MatrixTiling tiling{rows, columns, depth, parts, 1};
          if (!is_tile(tiling, extents) || !resources_of(tiling, extents, limits).fit()) continue;
          MatrixTiling more = tiling;
          while (++more.block_n <= kMostBlocks && resources_of(more, extents, limits).fit()) tiling = more;
          tilings.push_back(tiling);
        }
      }
    }
  }
  return tilings;
}

}  // namespace fusedsc::tuning
