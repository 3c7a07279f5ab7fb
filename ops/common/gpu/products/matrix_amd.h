/// Products of matrices by AMD's matrix cores (matrix_cores.h).
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/matrix_cores.h"

namespace fusedsc::gpu {

/// Each wave owns a rectangle of the tile, of squares of 16 rows and 16 columns. Instructions take columns for their A
/// and rows for their B, so that a lane gets elements of one row.
template <class T, class Tile>
class MatrixCoreProduct {
 public:
  using A = Accumulator<T>;
  static constexpr bool kKeepsSums = false;
  static constexpr int kWaves = kMatrixThreads / kMatrixCoreLanes;
  static constexpr int kParts = Tile::kParts < kWaves ? Tile::kParts : kWaves;

  FUSEDSC_DEVICE MatrixCoreProduct() { clear(); }

  FUSEDSC_DEVICE static constexpr int parts() { return kParts; }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) sums_[i][j] = MatrixCoreSums<A>{0, 0, 0, 0};
    }
  }

  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply(const Rows& rows, const Cols& cols, int depth) {
    if (depth >= Tile::kDepth) multiply_steps<true>(rows, cols, depth);
    else multiply_steps<false>(rows, cols, depth);
  }

  template <class RowsTile, class ColsTile>
  FUSEDSC_DEVICE void leave(A* sums) const {
    sums += part() * Tile::kRows * Tile::kSumsPitch;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      A* row = sums + outer_of<RowsTile, kRowTiles>(first_row(), lane() % 16, i) * Tile::kSumsPitch;
      const auto col = [](int v, int j) {
        return outer_of<ColsTile, kColTiles>(first_col(), matrix_core_row<T>(lane(), v), j);
      };
      if constexpr (ColsTile::kDepthInner && sizeof(A) == 4) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) {
          const A run[4] = {sums_[i][j][0], sums_[i][j][1], sums_[i][j][2], sums_[i][j][3]};
          store<4>(run, row + col(0, j));
        }
      } else {
        constexpr int kRun = ColsTile::kDepthInner ? 1 : kColTiles;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
#pragma unroll
          for (int j = 0; j < kColTiles; j += kRun) {
            A run[kRun];
#pragma unroll
            for (int n = 0; n < kRun; ++n) run[n] = sums_[i][j + n][v];
            store<kRun>(run, row + col(v, j));
          }
        }
      }
    }
  }

 private:
  static constexpr int kPartWaves = kWaves / kParts, kPartDepth = Tile::kDepth / kParts;
  static constexpr bool kCutsRows = Tile::kRows >= Tile::kCols;
  static constexpr int kRows = Tile::kRows / (kCutsRows ? kPartWaves : 1);  // of a wave
  static constexpr int kCols = Tile::kCols / (kCutsRows ? 1 : kPartWaves);
  static constexpr int kRowTiles = kRows / 16, kColTiles = kCols / 16;
  static_assert(kRows % 16 == 0 && kCols % 16 == 0 && kPartDepth % 16 == 0);

  FUSEDSC_DEVICE static int lane() { return thread_index() % kMatrixCoreLanes; }
  FUSEDSC_DEVICE static int wave() { return thread_index() / kMatrixCoreLanes; }
  FUSEDSC_DEVICE static int part() { return wave() / kPartWaves; }
  FUSEDSC_DEVICE static int first_row() { return kCutsRows ? wave() % kPartWaves * kRows : 0; }
  FUSEDSC_DEVICE static int first_col() { return kCutsRows ? 0 : wave() % kPartWaves * kCols; }

  /// Of the i-th row (or column) of the n-th of kTiles squares. Where neighbours in shared memory are rows, a lane
  /// reads its rows of all squares at once.
  template <class OperandTile, int kTiles>
  FUSEDSC_DEVICE static int outer_of(int first, int i, int n) {
    return OperandTile::kDepthInner ? first + 16 * n + i : first + kTiles * i + n;
  }

  template <bool kAll, class Rows, class Cols>
  FUSEDSC_DEVICE void multiply_steps(const Rows& rows, const Cols& cols, int depth) {
    [[maybe_unused]] constexpr int kUnrolled =
        Rows::kSeam || Cols::kSeam ? 1 : kPartDepth / 16;  // seams need registers
#pragma unroll kUnrolled
    for (int step = 0; step < kPartDepth; step += 16) {
      const int k = part() * kPartDepth + step;
      if (!kAll && k >= depth) break;
      MatrixCoreFactors<T> b[kRowTiles], a[kColTiles];
      read(rows, first_row(), k, b);
      read(cols, first_col(), k, a);
      if constexpr (sizeof(T) == 2) {
        if (any_of_wave(has_subnormals(a) || has_subnormals(b))) {
          multiply_widened(a, b);
          continue;
        }
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) matrix_core_multiply_add<T>(sums_[i][j], a[j], b[i]);
      }
    }
  }

  /// gfx90a's products of 16-bit numbers take subnormal ones for 0; those of float do not.
  template <int kTiles>
  FUSEDSC_DEVICE static bool has_subnormals(const MatrixCoreFactors<T> (&factors)[kTiles]) {
    constexpr std::uint32_t kSigns = 0x80008000u, kNormal = std::is_same_v<T, Float16> ? 0x0400 : 0x0080;
    std::uint32_t found = 0;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Adding what makes a half's highest bit out of 1, and out of the least normal number.
        const std::uint32_t word = factors[n].words[i] & ~kSigns;
        found |= (word + (kSigns - 0x00010001u)) ^ (word + (kSigns - kNormal * 0x00010001u));
      }
    }
    return (found & kSigns) != 0;
  }

  /// One value of k at a time, which takes few registers.
  FUSEDSC_DEVICE void multiply_widened(MatrixCoreFactors<T> (&a)[kColTiles], MatrixCoreFactors<T> (&b)[kRowTiles]) {
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      float wide[kColTiles];
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) wide[j] = take_first(a[j]);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const float factor = take_first(b[i]);
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) matrix_core_step(sums_[i][j], wide[j], factor);
      }
    }
  }

  /// The next one becomes the first.
  FUSEDSC_DEVICE static float take_first(MatrixCoreFactors<T>& halves) {
    const T first{static_cast<std::uint16_t>(halves.words[0])};
    halves.words[0] = halves.words[0] >> 16 | halves.words[1] << 16;
    halves.words[1] >>= 16;
    return to_float(first);
  }

  /// The squares' rows (or columns) from `first` on, values of k from k on.
  template <class Operand, int kTiles>
  FUSEDSC_DEVICE static void read(const Operand& operand, int first, int k, MatrixCoreFactors<T> (&to)[kTiles]) {
    using OperandTile = typename Operand::Tile;
    const int row = lane() % 16, first_k = k + lane() / 16 * 4;
    if constexpr (!Operand::kSeam && sizeof(T) == 2) {
      read_words<OperandTile>(operand.tile, first, row, first_k, to);
    } else {
      // As many at once as are read at once: seams need registers.
      constexpr int kAtOnce = Operand::kSeam && OperandTile::kDepthInner ? 1 : kTiles;
#pragma unroll
      for (int n = 0; n < kTiles; n += kAtOnce) {
        const auto place = [&](int i) {
          return OperandPlace{outer_of<OperandTile, kTiles>(first, row, n + i / 4), first_k + i % 4};
        };
        A z[4 * kAtOnce];
        read_values<OperandTile, kAtOnce>(operand.tile, place(0), z);
        if constexpr (Operand::kSeam) {
          A other[4 * kAtOnce] = {};
          if (operand.other_tile != nullptr) read_values<OperandTile, kAtOnce>(operand.other_tile, place(0), other);
          operand.apply(z, other, place);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) keep(z + 4 * i, to[n + i]);
      }
    }
  }

  FUSEDSC_DEVICE static void keep(const A* z, MatrixCoreFactors<T>& to) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) to.words[i] = to_bits(z[2 * i], z[2 * i + 1], T());
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to.values[i] = z[i];
    }
  }

  template <class OperandTile, int kTiles>
  FUSEDSC_DEVICE static void read_words(const T* tile, int first, int row, int k, MatrixCoreFactors<T> (&to)[kTiles]) {
    if constexpr (OperandTile::kDepthInner) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const auto run = load<4>(tile + OperandTile::place(outer_of<OperandTile, kTiles>(first, row, n), k));
        to[n].words[0] = run.words[0];
        to[n].words[1] = run.words[1];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const T* from = tile + OperandTile::place(outer_of<OperandTile, kTiles>(first, row, 0), k + 2 * i);
        const auto even = load<kTiles>(from), odd = load<kTiles>(from + OperandTile::kPitch);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int shift = n % 2 * 16;
          to[n].words[i] = (even.words[n / 2] >> shift & 0xffffu) | (odd.words[n / 2] >> shift) << 16;
        }
      }
    }
  }

  /// Of kTiles squares, whose first values are at `from`.
  template <class OperandTile, int kTiles>
  FUSEDSC_DEVICE static void read_values(const T* tile, const OperandPlace& from, A (&to)[4 * kTiles]) {
    if constexpr (OperandTile::kDepthInner) {
      constexpr int kRun = sizeof(T) == 8 ? 2 : 4;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const T* row = tile + OperandTile::place(from.outer + 16 * n, from.k);
#pragma unroll
        for (int i = 0; i < 4; i += kRun) load<kRun>(row + i).widen(to + 4 * n + i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        A run[kTiles];
        load<kTiles>(tile + OperandTile::place(from.outer, from.k + i)).widen(run);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) to[4 * n + i] = run[n];
      }
    }
  }

  MatrixCoreSums<A> sums_[kRowTiles][kColTiles];
};

}  // namespace fusedsc::gpu
