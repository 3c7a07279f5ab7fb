/// Products of matrices by AMD's matrix cores (matrix_cores.h).
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/products/matrix_cores.h"

namespace fusedsc::gpu {

/// How many parts rows are cut into so that each of `waves` owns a rectangle, of squares of 16 rows and 16 columns,
/// with as few rows and columns as can be: it reads least then.
constexpr int cuts_of_rows(int rows, int cols, int waves) {
  int best = 0;
  for (int cuts = waves, other = 1; cuts >= 1; cuts /= 2, other *= 2) {
    if (rows % (16 * cuts) != 0 || cols % (16 * other) != 0) continue;
    if (best == 0 || rows / cuts + cols / other < rows / best + cols / (waves / best)) best = cuts;
  }
  return best;
}

/// Each wave owns a rectangle of the tile. Instructions take columns for their A and rows for their B, so that a lane
/// gets elements of one row. Cores: matrix_cores.h.
template <class T, class Tile, class Cores>
class MatrixCoreProduct {
 public:
  using A = Accumulator<T>;
  static constexpr bool kKeepsSums = false;
  static constexpr int kWaves = kMatrixThreads / Cores::kLanes;
  static constexpr int kParts = Tile::kParts < kWaves ? Tile::kParts : kWaves;

  FUSEDSC_DEVICE MatrixCoreProduct() { clear(); }

  FUSEDSC_DEVICE static constexpr int parts() { return kParts; }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) sums_[i][j] = Sums{};
    }
  }

  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply(const Rows& rows, const Cols& cols, int depth) {
    constexpr bool kHasPrologue = Rows::kHasPrologue || Cols::kHasPrologue;  // which is much code: once
    if (!kHasPrologue && depth >= Tile::kDepth) multiply_steps<true>(rows, cols, depth);
    else multiply_steps<false>(rows, cols, depth);
  }

  template <class RowsTile, class ColsTile>
  FUSEDSC_DEVICE void leave(A* sums) const {
    sums += part() * Tile::kRows * Tile::kSumsPitch;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      A* row = sums + outer_of<RowsTile, kRowTiles>(first_row(), Cores::b_row(lane()), i) * Tile::kSumsPitch;
      const auto col = [](int v, int j) {
        return outer_of<ColsTile, kColTiles>(first_col(), Cores::d_row(lane(), v), j);
      };
      if constexpr (ColsTile::kDepthInner && sizeof(A) == 4) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) {
#pragma unroll
          for (int v = 0; v < Cores::kSums; v += 4) {
            const A run[4] = {sums_[i][j][v], sums_[i][j][v + 1], sums_[i][j][v + 2], sums_[i][j][v + 3]};
            store<4>(run, row + col(v, j));
          }
        }
      } else {
        constexpr int kRun = ColsTile::kDepthInner ? 1 : kColTiles;
#pragma unroll
        for (int v = 0; v < Cores::kSums; ++v) {
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
  static constexpr int kRowCuts = cuts_of_rows(Tile::kRows, Tile::kCols, kPartWaves), kColCuts = kPartWaves / kRowCuts;
  static constexpr int kRows = Tile::kRows / kRowCuts, kCols = Tile::kCols / kColCuts;  // of a wave
  static constexpr int kRowTiles = kRows / 16, kColTiles = kCols / 16;
  static_assert(kPartDepth % 16 == 0);
  static constexpr int kFactors = Cores::kFactors;
  /// Values of k that a lane reads at once where they are neighbours.
  static constexpr int kRun = sizeof(T) == 8 ? 2 : sizeof(T) == 4 || kFactors == 4 ? 4 : 8;
  using Factors = typename Cores::Factors;
  using Sums = typename Cores::Sums;

  FUSEDSC_DEVICE static int lane() { return thread_index() % Cores::kLanes; }
  FUSEDSC_DEVICE static int wave() { return thread_index() / Cores::kLanes; }
  FUSEDSC_DEVICE static int part() { return wave() / kPartWaves; }
  FUSEDSC_DEVICE static int first_row() { return wave() % kPartWaves % kRowCuts * kRows; }
  FUSEDSC_DEVICE static int first_col() { return wave() % kPartWaves / kRowCuts * kCols; }

  /// Of the i-th row (or column) of the n-th of kTiles squares. Where neighbours in shared memory are rows, a lane
  /// reads its rows of all squares at once.
  template <class OperandTile, int kTiles>
  FUSEDSC_DEVICE static int outer_of(int first, int i, int n) {
    return OperandTile::kDepthInner ? first + 16 * n + i : first + kTiles * i + n;
  }

  template <bool kAll, class Rows, class Cols>
  FUSEDSC_DEVICE void multiply_steps(const Rows& rows, const Cols& cols, int depth) {
    [[maybe_unused]] constexpr int kUnrolled =
        Rows::kHasPrologue || Cols::kHasPrologue ? 1 : kPartDepth / 16;  // prologues need registers
#pragma unroll kUnrolled
    for (int step = 0; step < kPartDepth; step += 16) {
      const int k = part() * kPartDepth + step;
      if (!kAll && k >= depth) break;
      Factors b[kRowTiles], a[kColTiles];
      read(rows, first_row(), Cores::b_row(lane()), k, b);
      read(cols, first_col(), Cores::a_row(lane()), k, a);
      bool flushes = false;
      if constexpr (Cores::kFlushesSubnormals) flushes = any_of_wave(has_subnormals(a, b));
      if (!flushes) {
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
          for (int j = 0; j < kColTiles; ++j) Cores::multiply_add(sums_[i][j], a[j], b[i]);
        }
      }
      // By a question of its own. With one for both ways clang moves all sums at the end of the usual one.
      if constexpr (Cores::kFlushesSubnormals) {
        if (asked_again(flushes)) multiply_widened(a, b);
      }
    }
  }

  /// Two numbers of 16 bits, which instructions take at once.
  using Halves __attribute__((vector_size(4))) = std::uint16_t;

  /// Whether there are factors which products of 16-bit numbers may take for 0; those of float do not. Without their
  /// signs these are from 1 up to the least normal number: less 1 they are less than any other, 0 then is the most.
  FUSEDSC_DEVICE static bool has_subnormals(const Factors (&a)[kColTiles], const Factors (&b)[kRowTiles]) {
    constexpr std::uint16_t kNormal = std::is_same_v<T, Float16> ? 0x0400 : 0x0080;
    Halves least = {0xffff, 0xffff};
    take_least(a, least);
    take_least(b, least);
    return least[0] < kNormal - 1 || least[1] < kNormal - 1;
  }
  template <int kTiles>
  FUSEDSC_DEVICE static void take_least(const Factors (&factors)[kTiles], Halves& least) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Halves halves = __builtin_bit_cast(Halves, factors[n].words[i] & 0x7fff7fffu) - std::uint16_t{1};
        least = halves < least ? halves : least;
      }
    }
  }

  /// One value of k at a time, which takes few registers.
  FUSEDSC_DEVICE void multiply_widened(Factors (&a)[kColTiles], Factors (&b)[kRowTiles]) {
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      float wide[kColTiles];
#pragma unroll
      for (int j = 0; j < kColTiles; ++j) wide[j] = take_first(a[j]);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const float factor = take_first(b[i]);
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) Cores::multiply_add_widened(sums_[i][j], wide[j], factor);
      }
    }
  }

  /// The next one becomes the first.
  FUSEDSC_DEVICE static float take_first(Factors& halves) {
    const T first{static_cast<std::uint16_t>(halves.words[0])};
    halves.words[0] = halves.words[0] >> 16 | halves.words[1] << 16;
    halves.words[1] >>= 16;
    return to_float(first);
  }

  /// The squares' rows (or columns) from `first` on, of each the lane's, values of k from k on.
  template <class Operand, int kTiles>
  FUSEDSC_DEVICE static void read(const Operand& operand, int first, int row, int k, Factors (&to)[kTiles]) {
    using OperandTile = typename Operand::Tile;
    const int first_k = k + Cores::first_k(lane());
    if constexpr (!Operand::kHasPrologue && sizeof(T) == 2) {
      read_words<OperandTile>(operand.tile, first, row, first_k, to);
    } else {
      // As many at once as are read at once: prologues need registers.
      constexpr int kAtOnce = Operand::kHasPrologue && OperandTile::kDepthInner ? 1 : kTiles;
      constexpr int kValues = Operand::kHasPrologue ? 4 : kFactors;  // of a square
#pragma unroll
      for (int n = 0; n < kTiles; n += kAtOnce) {
#pragma unroll
        for (int value = 0; value < kFactors; value += kValues) {
          const auto place = [&](int i) {
            return OperandPlace{outer_of<OperandTile, kTiles>(first, row, n + i / kValues),
                                first_k + value + i % kValues};
          };
          A z[kValues * kAtOnce];
          read_values<OperandTile, kAtOnce, kValues>(operand.tile, place(0), z);
          if constexpr (Operand::kHasPrologue) {
            A other[kValues * kAtOnce] = {};
            if (operand.other_tile != nullptr) {
              read_values<OperandTile, kAtOnce, kValues>(operand.other_tile, place(0), other);
            }
            operand.apply(z, other, place);
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) keep<kValues>(z + kValues * i, value, to[n + i]);
        }
      }
    }
  }

  /// kCount values from `first` on.
  template <int kCount>
  FUSEDSC_DEVICE static void keep(const A* z, int first, Factors& to) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) to.words[first / 2 + i] = to_bits(z[2 * i], z[2 * i + 1], T());
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to.values[first + i] = z[i];
    }
  }

  template <class OperandTile, int kTiles>
  FUSEDSC_DEVICE static void read_words(const T* tile, int first, int row, int k, Factors (&to)[kTiles]) {
    if constexpr (OperandTile::kDepthInner) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const T* from = tile + OperandTile::place(outer_of<OperandTile, kTiles>(first, row, n), k);
#pragma unroll
        for (int i = 0; i < kFactors; i += kRun) {
          const auto run = load<kRun>(from + i);
#pragma unroll
          for (int word = 0; word < kRun / 2; ++word) to[n].words[i / 2 + word] = run.words[word];
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kFactors / 2; ++i) {
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

  /// kValues each of kTiles squares, whose first values are at `from`.
  template <class OperandTile, int kTiles, int kValues>
  FUSEDSC_DEVICE static void read_values(const T* tile, const OperandPlace& from, A (&to)[kValues * kTiles]) {
    if constexpr (OperandTile::kDepthInner) {
      constexpr int kAtOnce = kRun < kValues ? kRun : kValues;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const T* row = tile + OperandTile::place(from.outer + 16 * n, from.k);
#pragma unroll
        for (int i = 0; i < kValues; i += kAtOnce) load<kAtOnce>(row + i).widen(to + kValues * n + i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        A run[kTiles];
        load<kTiles>(tile + OperandTile::place(from.outer, from.k + i)).widen(run);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) to[kValues * n + i] = run[n];
      }
    }
  }

  Sums sums_[kRowTiles][kColTiles];
};

}  // namespace fusedsc::gpu
