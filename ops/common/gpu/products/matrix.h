/// Products of matrices by the threads of a block: D[row][col] += sum over k of A[row][k] * B[col][k], where A and B
/// are tiles in shared memory and D stays in registers. What happens to elements between shared memory and the product,
/// a prologue, is the caller's. The same meaning on every target; tensor cores where they are (matrix_cuda.h), matrix
/// cores (matrix_amd.h), else fused multiply-adds.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/tensors/vector.h"

/// As FUSEDSC_KERNEL, of kernels that multiply matrices of T; ..._OF is told which type that is.
#ifndef FUSEDSC_MATRIX_KERNEL
#define FUSEDSC_MATRIX_KERNEL FUSEDSC_KERNEL
#endif
#ifndef FUSEDSC_MATRIX_KERNEL_OF
#define FUSEDSC_MATRIX_KERNEL_OF(T, threads, blocks) FUSEDSC_MATRIX_KERNEL(threads, blocks)
#endif
#ifndef FUSEDSC_FUSED_PRODUCT_BLOCKS
#define FUSEDSC_FUSED_PRODUCT_BLOCKS 2
#endif

namespace fusedsc::gpu {

/// Threads of a block, of every kernel that multiplies matrices.
inline constexpr int kMatrixThreads = 128;

/// What a block computes at a time. `depth`: values of k that lie in shared memory at a time. With several parts, each
/// part of the threads sums its share of them over the whole tile: for tiles too small for all threads.
template <int kRows_, int kCols_, int kDepth_, int kParts_ = 1, bool kTf32_ = false>
struct MatrixTile {
  static constexpr int kRows = kRows_, kCols = kCols_, kDepth = kDepth_, kParts = kParts_;
  static constexpr bool kTf32 = kTf32_;  ///< factors of float are rounded to TensorFloat-32 (matrix_tf32.h)
  static constexpr int kPartDepth = kDepth / kParts;

  /// Of the sums in shared memory: [part][row][col].
  static constexpr int kSumsPitch = kCols + 4;  // neighbouring rows fall on different banks
  static constexpr int kSums = kParts * kRows * kSumsPitch;
};

/// Elements of an operand in shared memory: kOuter rows (or columns) times kDepth values of k, either of them
/// innermost. kTransposed: in the tensor the other one is.
template <class T, int kOuter, int kDepth_, bool kDepthInner_, bool kTf32 = false, bool kTransposed_ = false>
struct OperandTile {
  static constexpr int kDepth = kDepth_;
  static constexpr bool kDepthInner = kDepthInner_, kTransposed = kTransposed_;
  static constexpr int kMajor = kDepthInner ? kOuter : kDepth, kMinor = kDepthInner ? kDepth : kOuter;
  /// So that neighbours fall on different banks, rows are padded, or runs of 16 bytes swizzled within 128.
  static constexpr bool kSwizzles = kTf32 && kDepthInner;
  static constexpr int kPitch = kSwizzles ? kMinor : kMinor + 16 / static_cast<int>(sizeof(T));
  static constexpr int kElements = kMajor * kPitch;
  // As threads copy it.
  static constexpr bool kCopiedDepthInner = kDepthInner != kTransposed;
  static constexpr int kCopiedMajor = kTransposed ? kMinor : kMajor, kCopiedMinor = kTransposed ? kMajor : kMinor;
  static_assert(!kSwizzles || kDepth == 32);

  FUSEDSC_DEVICE static constexpr int place(int outer, int k) {
    if (kSwizzles) return outer * kPitch + (k ^ swizzle(outer));
    return kDepthInner ? outer * kPitch + k : k * kPitch + outer;
  }

  /// From a place in one of the first rows, as they are copied, to that so many rows, a multiple of how many the first
  /// ones are, below.
  FUSEDSC_DEVICE static constexpr int below(int place, int rows) {
    if (kTransposed) return place + rows;
    return (kSwizzles ? place ^ swizzle(rows) : place) + rows * kPitch;
  }

  /// For the orders in which matrix_tf32.h takes rows and columns.
  FUSEDSC_DEVICE static constexpr int swizzle(int outer) {
    return ((outer >> 2 & 7) ^ (outer & 1) << 2 ^ (outer & 2)) * 4;
  }

  FUSEDSC_DEVICE static Accumulator<T> read(const T* tile, int outer, int k) {
    return to_accumulator(tile[place(outer, k)]);
  }
};

/// An operand whose elements are multiplied as they are.
template <class T, class Tile_>
struct PlainOperand {
  using Tile = Tile_;
  static constexpr bool kHasPrologue = false;

  const T* tile;
};

/// An operand whose elements are activation(scale*a + other_scale*b + shift), with coefficients by k, or by row (or
/// column). The latter's elements beyond `depth` are 0.
template <class T, class Tile_, bool kByDepth>
struct PrologueOperand {
  using Tile = Tile_;
  using A = Accumulator<T>;
  static constexpr bool kHasPrologue = true;

  const T *tile, *other_tile;  ///< other_tile: null where there is no b
  const A *scale, *shift, *other_scale;
  Activation activation;
  int depth;

  /// `other`: values of b, read only if there are any; place(i) says where element i lies: {row or column, k}.
  template <int kCount, class Place>
  FUSEDSC_DEVICE void apply(A (&z)[kCount], const A (&other)[kCount], const Place& place) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int c = kByDepth ? place(i).k : place(i).outer;
      z[i] =
          other_tile == nullptr ? z[i] * scale[c] + shift[c] : z[i] * scale[c] + (other[i] * other_scale[c] + shift[c]);
    }
    activate(activation, z);
    if constexpr (!kByDepth) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) z[i] = place(i).k < depth ? z[i] : A(0);
    }
  }
};

struct OperandPlace {
  int outer, k;
};

/// Each thread owns a grid of rows and columns and multiplies it by fused multiply-adds. What it reads at once of an
/// operand lies side by side: values of k of one row (or column), or neighbouring rows.
template <class T, class Tile>
class FmaProduct {
 public:
  using A = Accumulator<T>;
  static constexpr bool kKeepsSums = false;  ///< they go through shared memory, where other threads finish them

  FUSEDSC_DEVICE FmaProduct() {
    // Of 32 neighbours, whose grid is 4 rows and 8 columns, the first and second share a row, the first and third a
    // column: shared memory then answers 16 of them at once, not 8.
    const int thread = thread_index() % kThreads, warp = thread / 32, lane = thread % 32;
    first_row_ = warp / kWarpCols * 4 + ((lane >> 1 & 1) | (lane >> 3 & 2));
    first_col_ = warp % kWarpCols * 8 + ((lane & 1) | (lane >> 1 & 6));
    part_ = thread_index() / kThreads;
    clear();
  }

  /// That it leaves.
  FUSEDSC_DEVICE static constexpr int parts() { return Tile::kParts; }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) sums_[i][j] = 0;
    }
  }

  /// `depth`: of the tiles, how many values of k are to be added.
  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply(const Rows& rows, const Cols& cols, int depth) {
    // Without branches, so that what comes next is read early; but prologues need the registers, where copies do, too.
    constexpr int kMost = kCopyStages == 1 && (Rows::kHasPrologue || Cols::kHasPrologue) ? kRun : 8;
    constexpr int kStep = Tile::kPartDepth < kMost ? Tile::kPartDepth : kMost;
    static_assert(Tile::kPartDepth % kStep == 0 && kStep % kRun == 0);
    const int begin = part_ * Tile::kPartDepth;
#pragma unroll 1
    for (int k = begin; k < begin + Tile::kPartDepth && k < depth; k += kStep) {
#pragma unroll
      for (int i = 0; i < kStep; i += kRun) multiply_run(rows, cols, k + i);
    }
  }

  /// Into shared memory, [part][row][col] at Tile::kSumsPitch. The operands' tiles are those that were multiplied.
  template <class RowsTile, class ColsTile>
  FUSEDSC_DEVICE void leave(A* sums) const {
    using OwnRows = Owned<RowsTile, kRows, kGridRows>;
    using OwnCols = Owned<ColsTile, kCols, kGridCols>;
    sums += part_ * Tile::kRows * Tile::kSumsPitch;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      A* row = sums + OwnRows::place(first_row_, i) * Tile::kSumsPitch;
#pragma unroll
      for (int j = 0; j < kCols; j += OwnCols::kNeighbours) {
        A values[OwnCols::kNeighbours];
#pragma unroll
        for (int v = 0; v < OwnCols::kNeighbours; ++v) values[v] = sums_[i][j + v];
        store<OwnCols::kNeighbours>(values, row + OwnCols::place(first_col_, j));
      }
    }
  }

 private:
  static constexpr int kThreads = kMatrixThreads / Tile::kParts, kWarps = kThreads / 32;
  /// As many columns of warps as make a thread's grid nearly square: it reads least then.
  static constexpr int kWarpCols = kWarps > 1 && Tile::kCols / 8 >= 2 * Tile::kRows / (4 * kWarps) ? 2 : 1;
  static constexpr int kGridCols = 8 * kWarpCols, kGridRows = kThreads / kGridCols;
  static constexpr int kRows = Tile::kRows / kGridRows, kCols = Tile::kCols / kGridCols;
  static constexpr int kRun = sizeof(T) == 4 ? 4 : 2;  ///< values of k read at once
  static_assert(kRows * kGridRows == Tile::kRows && kCols * kGridCols == Tile::kCols);

  /// Which rows (or columns) a thread owns, kCount of them.
  template <class OperandTile, int kCount, int kGrid>
  struct Owned {
    static constexpr int kMost = sizeof(T) == 8 ? 2 : 4;
    static constexpr int kNeighbours = OperandTile::kDepthInner ? 1 : kCount < kMost ? kCount : kMost;
    static_assert(kCount % kNeighbours == 0);

    FUSEDSC_DEVICE static int place(int first, int i) {
      return (i / kNeighbours * kGrid + first) * kNeighbours + i % kNeighbours;
    }

    template <class Operand>
    FUSEDSC_DEVICE static void read(const Operand& operand, int first, int k, A (&to)[kCount][kRun]) {
      if constexpr (OperandTile::kDepthInner) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const int outer = place(first, i);
          read_with_prologue(operand, outer, k, to[i], [&](int v) { return OperandPlace{outer, k + v}; });
        }
      } else {
#pragma unroll
        for (int v = 0; v < kRun; ++v) {
#pragma unroll
          for (int i = 0; i < kCount; i += kNeighbours) {
            const int outer = place(first, i);
            A neighbours[kNeighbours];
            read_with_prologue(operand, outer, k + v, neighbours, [&](int n) {
              return OperandPlace{outer + n, k + v};
            });
#pragma unroll
            for (int n = 0; n < kNeighbours; ++n) to[i + n][v] = neighbours[n];
          }
        }
      }
    }
  };

  /// Neighbours in shared memory.
  template <class Operand, int kCount, class Place>
  FUSEDSC_DEVICE static void read_with_prologue(const Operand& operand, int outer, int k, A (&to)[kCount],
                                                const Place& place) {
    const int first = Operand::Tile::place(outer, k);
    load<kCount>(operand.tile + first).widen(to);
    if constexpr (Operand::kHasPrologue) {
      A other[kCount] = {};
      if (operand.other_tile != nullptr) load<kCount>(operand.other_tile + first).widen(other);
      operand.apply(to, other, place);
    }
  }

  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply_run(const Rows& rows, const Cols& cols, int k) {
    A a[kRows][kRun], b[kCols][kRun];
    Owned<typename Cols::Tile, kCols, kGridCols>::read(cols, first_col_, k, b);
    Owned<typename Rows::Tile, kRows, kGridRows>::read(rows, first_row_, k, a);
#pragma unroll
    for (int v = 0; v < kRun; ++v) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kCols; ++j) sums_[i][j] += a[i][v] * b[j][v];
      }
    }
  }

  A sums_[kRows][kCols];
  int first_row_, first_col_, part_;
};

}  // namespace fusedsc::gpu

#ifdef FUSEDSC_TF32
#include "fusedsc/common/gpu/products/matrix_tf32.h"
#endif
#if defined(FUSEDSC_HOST_EXECUTOR)
#include "host_executor/matrix_product_host.h"
#elif defined(__CUDACC__)
#include "fusedsc/common/gpu/products/matrix_cuda.h"
#elif defined(FUSEDSC_MFMA) || defined(FUSEDSC_WMMA)
#include "fusedsc/common/gpu/products/matrix_amd.h"
#endif

namespace fusedsc::gpu {

template <class T, class Tile>
struct MatrixProductOf {
#if defined(FUSEDSC_HOST_EXECUTOR)
  using Type = ProductOnHost<T, Tile>;
#elif defined(FUSEDSC_MFMA)
  using Type = MatrixCoreProduct<T, Tile, Mfma<T>>;
#else
  using Type = FmaProduct<T, Tile>;
#endif
};
#ifdef FUSEDSC_TF32
template <class Tile>
requires Tile::kTf32 struct MatrixProductOf<float, Tile> {
  using Type = Tf32Product<Tile>;
};
#endif
#if defined(FUSEDSC_WMMA)
template <class T, class Tile>
requires(sizeof(T) == 2) struct MatrixProductOf<T, Tile> {
  using Type = MatrixCoreProduct<T, Tile, Wmma<T, FUSEDSC_WMMA>>;
};
#endif
#if defined(__CUDACC__) && !defined(FUSEDSC_HOST_EXECUTOR)
template <class T, class Tile>
requires(sizeof(T) == 2) struct MatrixProductOf<T, Tile> {
  using Type = TensorCoreProduct<T, Tile>;
};
#endif

template <class T, class Tile>
using MatrixProduct = typename MatrixProductOf<T, Tile>::Type;

}  // namespace fusedsc::gpu
