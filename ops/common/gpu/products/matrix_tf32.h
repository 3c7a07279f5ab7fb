/// Products of float matrices whose factors are rounded to TensorFloat-32, by the tensor cores of NVIDIA's GPUs
/// (mma.sync.m16n8k8). Which rows and columns of a tile an instruction gets is chosen such that a thread reads several
/// of its factors at once, from different banks than its neighbours, and holds runs of four columns in the end.
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/wave_product.h"

namespace fusedsc::gpu {

/// Each warp owns a rectangle of the tile: 32 rows, and one or more times 32 columns.
template <class Tile>
class Tf32Product {
 public:
  /// Whoever computed sums finishes them.
  static constexpr bool kKeepsSums = Tile::kParts == 1;
  static constexpr int kWarps = kMatrixThreads / 32 / Tile::kParts;  ///< of a part
  static constexpr int kWarpRows = Tile::kRows >= 2 * Tile::kCols ? kWarps : kWarps < 4 || Tile::kRows == 32 ? 1 : 2;
  static constexpr int kWarpCols = kWarps / kWarpRows, kColGroups = Tile::kCols / kWarpCols / 32;
  static_assert(Tile::kRows == 32 * kWarpRows && Tile::kCols == 32 * kWarpCols * kColGroups);
  static_assert(Tile::kPartDepth % 8 == 0);

  FUSEDSC_DEVICE Tf32Product() {
    part_ = warp() / kWarps;
    clear();
  }

  FUSEDSC_DEVICE static constexpr int parts() { return Tile::kParts; }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sums_[i][j][v] = 0;
      }
    }
  }

  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply(const Rows& rows, const Cols& cols, int depth) {
    if (depth >= Tile::kDepth) multiply_steps<true>(rows, cols, depth);
    else multiply_steps<false>(rows, cols, depth);
  }

  // A thread's sums: kRowsOfThread rows, kRunsOfRow runs of four columns of each.
  static constexpr int kRowsOfThread = 4, kRunsOfRow = 2 * kColGroups;

  FUSEDSC_DEVICE static int row(int i) { return first_row() + row_of(lane() / 4 + i % 2 * 8) + i / 2; }
  FUSEDSC_DEVICE static int col(int run) { return first_col() + run / 2 * 32 + run % 2 * 16 + lane() % 4 * 4; }
  FUSEDSC_DEVICE static int warp_row() { return warp() % kWarps / kWarpCols; }
  FUSEDSC_DEVICE static int warp_col() { return warp() % kWarps % kWarpCols; }

  FUSEDSC_DEVICE void read(int row, int run, float (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = sums_[row / 2][run / 2 * 4 + i][row % 2 * 2 + run % 2];
  }

  template <class RowsTile, class ColsTile>
  FUSEDSC_DEVICE void leave(float* sums) const {
    sums += part_ * Tile::kRows * Tile::kSumsPitch;
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
#pragma unroll
      for (int run = 0; run < kRunsOfRow; ++run) {
        float values[4];
        read(i, run, values);
        store<4>(values, sums + row(i) * Tile::kSumsPitch + col(run));
      }
    }
  }

 private:
  static constexpr int kRowTiles = 2, kColTiles = 4 * kColGroups;

  /// kAll: there are as many values of k as in a tile, so that nothing keeps reads of the next step behind this one.
  template <bool kAll, class Rows, class Cols>
  FUSEDSC_DEVICE void multiply_steps(const Rows& rows, const Cols& cols, int depth) {
#pragma unroll
    for (int step = 0; step < Tile::kPartDepth; step += 8) {
      const int k = part_ * Tile::kPartDepth + step;
      if (!kAll && k >= depth) break;
      std::uint32_t a[kRowTiles][4];
      read_rows(rows, k, a);
#pragma unroll
      for (int group = 0; group < kColGroups; ++group) {
        std::uint32_t b[4][2];
        read_cols(cols, first_col() + 32 * group, k, b);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) wave_multiply_add_tf32(sums_[i][4 * group + j], a[i], b[j]);
        }
      }
    }
  }

  FUSEDSC_DEVICE static int warp() { return thread_index() / 32; }
  FUSEDSC_DEVICE static int lane() { return thread_index() % 32; }
  FUSEDSC_DEVICE static int first_row() { return warp_row() * 32; }
  FUSEDSC_DEVICE static int first_col() { return warp_col() * 32 * kColGroups; }

  /// Row r of the first instruction's 16; the second one's is the next. Column n of the first of four's 8, likewise.
  FUSEDSC_DEVICE static constexpr int row_of(int r) { return (r & 1) * 2 + (r & 2) * 8 + (r & 4) + (r & 8); }
  FUSEDSC_DEVICE static constexpr int col_of(int n) { return n / 2 * 4 + n % 2 * 16; }

  /// As instructions take them: rows g and g + 8 of column t, then of column t + 4, with g = lane / 4, t = lane % 4.
  template <class Operand>
  FUSEDSC_DEVICE static void read_rows(const Operand& operand, int k, std::uint32_t (&to)[kRowTiles][4]) {
    const auto place = [&](int i, int v) {
      return OperandPlace{first_row() + row_of(lane() / 4 + v % 2 * 8) + i, k + lane() % 4 + v / 2 * 4};
    };
    float z[4 * kRowTiles], other[4 * kRowTiles] = {};
    const auto read = [&](const float* tile, float(&values)[4 * kRowTiles]) {
      if constexpr (Operand::Tile::kDepthInner) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          const int matrix = lane() / 8;
          const int row = first_row() + row_of(lane() % 8 + matrix % 2 * 8) + i;
          read_matrices<Operand>(
              tile, row, k + matrix / 2 * 4, [&](int v) { return place(i, v); }, values + 4 * i);
        }
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const OperandPlace first = place(0, v);
          float pair[kRowTiles];
          load<kRowTiles>(tile + Operand::Tile::place(first.outer, first.k)).widen(pair);
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) values[4 * i + v] = pair[i];
        }
      }
    };
    read(operand.tile, z);
    if constexpr (Operand::kHasPrologue) {
      if (operand.other_tile != nullptr) read(operand.other_tile, other);
      operand.apply(z, other, [&](int i) { return place(i / 4, i % 4); });
    }
#pragma unroll
    for (int i = 0; i < 4 * kRowTiles; ++i) to[i / 4][i % 4] = to_tf32(z[i]);
  }

  /// As instructions take them: column g of rows t and t + 4.
  template <class Operand>
  FUSEDSC_DEVICE static void read_cols(const Operand& operand, int first, int k, std::uint32_t (&to)[4][2]) {
    const auto place = [&](int j, int v) {
      return OperandPlace{first + col_of(lane() / 4) + j, k + lane() % 4 + v * 4};
    };
    float z[8], other[8] = {};
    const auto read = [&](const float* tile, float(&values)[8]) {
      if constexpr (Operand::Tile::kDepthInner) {
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          const int matrix = lane() / 8;
          read_matrices<Operand>(
              tile, first + col_of(lane() % 8) + j + matrix / 2, k + matrix % 2 * 4,
              [&](int v) { return place(j + v / 2, v % 2); }, values + 2 * j);
        }
      } else {
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const OperandPlace at = place(0, v);
          float run[4];
          load<4>(tile + Operand::Tile::place(at.outer, at.k)).widen(run);
#pragma unroll
          for (int j = 0; j < 4; ++j) values[2 * j + v] = run[j];
        }
      }
    };
    read(operand.tile, z);
    if constexpr (Operand::kHasPrologue) {
      if (operand.other_tile != nullptr) read(operand.other_tile, other);
      operand.apply(z, other, [&](int i) { return place(i / 2, i % 2); });
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i / 2][i % 2] = to_tf32(z[i]);
  }

  /// Four matrices of 8 rows and 4 columns, each thread an element of each, at place(0) to place(3). {row, k}: where
  /// one of the rows begins, that of matrix lane / 8.
  template <class Operand, class Place>
  FUSEDSC_DEVICE static void read_matrices(const float* tile, int row, int k, const Place& place, float* to) {
#ifdef FUSEDSC_HOST_EXECUTOR
    static_cast<void>(row), static_cast<void>(k);
    for (int v = 0; v < 4; ++v) to[v] = tile[Operand::Tile::place(place(v).outer, place(v).k)];
#else
    static_cast<void>(place);
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile + Operand::Tile::place(row, k)));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(address)
                 : "memory");
#endif
  }

  float sums_[kRowTiles][kColTiles][4];
  int part_;
};

}  // namespace fusedsc::gpu
