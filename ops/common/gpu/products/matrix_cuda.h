/// Products of 16-bit matrices by NVIDIA's tensor cores (mma.sync.m16n8k16).
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/wave_product.h"

namespace fusedsc::gpu {

/// Four 8x8 matrices of 16-bit elements, each thread holding two neighbours of a row of each; `row` is the address of
/// one of their rows, of matrix lane / 8. Transposed: neighbours of a column.
template <bool kTransposed>
FUSEDSC_DEVICE void load_matrices(const void* row, std::uint32_t (&to)[4]) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
}

template <class T>
FUSEDSC_DEVICE void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t* b, T) {
  wave_multiply_add(d, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, T());
}

/// Each warp owns a rectangle of the tile, of fragments of 16 rows and 16 columns.
template <class T, class Tile>
class TensorCoreProduct {
 public:
  static constexpr bool kKeepsSums = false;

  FUSEDSC_DEVICE TensorCoreProduct() {
    const int warp = thread_index() / 32;
    part_ = warp / kWarps;
    first_row_ = warp % kWarps / kWarpCols * kRows;
    first_col_ = warp % kWarps % kWarpCols * kCols;
    clear();
  }

  FUSEDSC_DEVICE static constexpr int parts() { return Tile::kParts; }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) sums_[i][j][v] = 0;
      }
    }
  }

  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply(const Rows& rows, const Cols& cols, int depth) {
#pragma unroll
    for (int step = 0; step < Tile::kPartDepth; step += 16) {
      const int k = part_ * Tile::kPartDepth + step;
      if (k >= depth) break;
      std::uint32_t a[kRows / 16][4];
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) read<true>(rows, first_row_ + 16 * i, k, a[i]);
#pragma unroll
      for (int j = 0; j < kCols / 16; ++j) {
        std::uint32_t b[4];
        read<false>(cols, first_col_ + 16 * j, k, b);
#pragma unroll
        for (int i = 0; i < kRows / 16; ++i) {
          multiply_add(sums_[i][2 * j], a[i], b, T());
          multiply_add(sums_[i][2 * j + 1], a[i], b + 2, T());
        }
      }
    }
  }

  template <class RowsTile, class ColsTile>
  FUSEDSC_DEVICE void leave(float* sums) const {
    const int lane = thread_index() % 32;
    sums += (part_ * Tile::kRows + first_row_ + lane / 4) * Tile::kSumsPitch + first_col_ + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* to = sums + (16 * i + 8 * half) * Tile::kSumsPitch + 8 * j;
          *reinterpret_cast<float2*>(to) = make_float2(sums_[i][j][2 * half], sums_[i][j][2 * half + 1]);
        }
      }
    }
  }

 private:
  static constexpr int kWarps = kMatrixThreads / 32 / Tile::kParts;  // of a part
  static constexpr int kWarpRows = Tile::kRows >= 2 * Tile::kCols ? kWarps : kWarps < 4 ? kWarps : 2;
  static constexpr int kWarpCols = kWarps / kWarpRows;
  static constexpr int kRows = Tile::kRows / kWarpRows, kCols = Tile::kCols / kWarpCols;  // of a warp
  static_assert(kRows % 16 == 0 && kCols % 16 == 0 && Tile::kPartDepth % 16 == 0);

  /// A fragment of 16 rows (or columns) and 16 values of k. Register r holds, of rows, those from 8 * (r % 2) on at
  /// values of k from 8 * (r / 2) on; of columns the other way round.
  template <bool kIsRows, class Operand>
  FUSEDSC_DEVICE static void read(const Operand& operand, int first, int k, std::uint32_t (&to)[4]) {
    using OperandTile = typename Operand::Tile;
    const auto outer_half = [](int r) { return kIsRows ? r % 2 : r / 2; };
    const auto depth_half = [](int r) { return kIsRows ? r / 2 : r % 2; };
    const int lane = thread_index() % 32, matrix = lane / 8;
    const int outer = first + 8 * outer_half(matrix) + (OperandTile::kDepthInner ? lane % 8 : 0);
    const int depth = k + 8 * depth_half(matrix) + (OperandTile::kDepthInner ? 0 : lane % 8);
    const int place = OperandTile::place(outer, depth);
    load_matrices<!OperandTile::kDepthInner>(operand.tile + place, to);
    if constexpr (Operand::kHasPrologue) {
      float z[8], other[8] = {};
#pragma unroll
      for (int r = 0; r < 4; ++r) to_floats(to[r], z[2 * r], z[2 * r + 1], T());
      if (operand.other_tile != nullptr) {
        std::uint32_t words[4];
        load_matrices<!OperandTile::kDepthInner>(operand.other_tile + place, words);
#pragma unroll
        for (int r = 0; r < 4; ++r) to_floats(words[r], other[2 * r], other[2 * r + 1], T());
      }
      operand.apply(z, other, [&](int i) {
        const int r = i / 2;
        return OperandPlace{first + 8 * outer_half(r) + lane / 4, k + 8 * depth_half(r) + lane % 4 * 2 + i % 2};
      });
#pragma unroll
      for (int r = 0; r < 4; ++r) to[r] = to_bits(z[2 * r], z[2 * r + 1], T());
    }
  }

  float sums_[kRows / 16][kCols / 8][4];
  int first_row_, first_col_, part_;
};

}  // namespace fusedsc::gpu
