/// Products of matrices by the threads of a block: D[row][col] += sum over k of A[row][k] * B[col][k], where A and B
/// are tiles in block memory and D stays in registers. What happens to elements between block memory and the product, a
/// seam, is the caller's. The same meaning on every target; tensor cores where they are (matrix_cuda.h), matrix cores
/// (matrix_amd.h), else fused multiply-adds.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/vector.h"

/// As FUSEDSC_KERNEL, of kernels that multiply matrices.
#ifndef FUSEDSC_MATRIX_KERNEL
#define FUSEDSC_MATRIX_KERNEL FUSEDSC_KERNEL
#endif

namespace fusedsc::gpu {

/// Threads of a block, of every kernel that multiplies matrices.
inline constexpr int kMatrixThreads = 128;

/// What a block computes at a time. `depth`: values of k that lie in block memory at a time. With several parts, each
/// part of the threads sums its share of them over the whole tile: for tiles too small for all threads.
template <int kRows_, int kCols_, int kDepth_, int kParts_ = 1, bool kTf32_ = false>
struct MatrixTile {
  static constexpr int kRows = kRows_, kCols = kCols_, kDepth = kDepth_, kParts = kParts_;
  static constexpr bool kTf32 = kTf32_;  ///< factors of float are rounded to TensorFloat-32 (matrix_tf32.h)
  static constexpr int kPartDepth = kDepth / kParts;

  /// Of the sums in block memory: [part][row][col].
  static constexpr int kSumsPitch = kCols + 4;  // neighbouring rows fall on different banks
  static constexpr int kSums = kParts * kRows * kSumsPitch;
};

/// Elements of an operand in block memory: kOuter rows (or columns) times kDepth values of k, either of them innermost.
template <class T, int kOuter, int kDepth_, bool kDepthInner_, bool kTf32 = false>
struct OperandTile {
  static constexpr int kDepth = kDepth_;
  static constexpr bool kDepthInner = kDepthInner_;
  static constexpr int kMajor = kDepthInner ? kOuter : kDepth, kMinor = kDepthInner ? kDepth : kOuter;
  /// So that neighbours fall on different banks, rows are padded, or runs of 16 bytes exchanged within 128.
  static constexpr bool kExchanges = kTf32 && kDepthInner;
  static constexpr int kPitch = kExchanges ? kMinor : kMinor + 16 / static_cast<int>(sizeof(T));
  static constexpr int kElements = kMajor * kPitch;
  static_assert(!kExchanges || kDepth == 32);

  FUSEDSC_DEVICE static constexpr int place(int outer, int k) {
    if (kExchanges) return outer * kPitch + (k ^ exchange(outer));
    return kDepthInner ? outer * kPitch + k : k * kPitch + outer;
  }

  /// From a place in one of the first rows to that so many rows, a multiple of how many the first ones are, below.
  FUSEDSC_DEVICE static constexpr int below(int place, int rows) {
    return (kExchanges ? place ^ exchange(rows) : place) + rows * kPitch;
  }

  /// For the orders in which matrix_tf32.h takes rows and columns.
  FUSEDSC_DEVICE static constexpr int exchange(int outer) {
    return ((outer >> 2 & 7) ^ (outer & 1) << 2 ^ (outer & 2)) * 4;
  }

  /// kCount values from k on.
  template <int kCount>
  FUSEDSC_DEVICE static void read(const T* tile, int outer, int k, Accumulator<T> (&to)[kCount]) {
    if constexpr (kDepthInner) {
      load<kCount>(tile + place(outer, k)).widen(to);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = to_accumulator(tile[place(outer, k + i)]);
    }
  }
};

/// An operand whose elements are multiplied as they are.
template <class T, class Tile_>
struct PlainOperand {
  using Tile = Tile_;
  static constexpr bool kSeam = false;

  const T* tile;
};

/// An operand whose elements are activation(scale*a + other_scale*b + shift), with coefficients by k, or by row (or
/// column). The latter's elements beyond `depth` are 0.
template <class T, class Tile_, bool kByDepth>
struct SeamOperand {
  using Tile = Tile_;
  using A = Accumulator<T>;
  static constexpr bool kSeam = true;

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

/// Each thread owns a grid of rows and columns and multiplies it by fused multiply-adds.
template <class T, class Tile>
class FmaProduct {
 public:
  using A = Accumulator<T>;
  static constexpr bool kKeepsSums = false;  ///< they go through block memory, where other threads finish them

  FUSEDSC_DEVICE FmaProduct() {
    const int thread = thread_index() % kThreads;
    first_row_ = thread / kGridCols;
    first_col_ = thread % kGridCols;
    part_ = thread_index() / kThreads;
    clear();
  }

  /// That it leaves.
  FUSEDSC_DEVICE static constexpr int parts() { return Tile::kParts; }

  FUSEDSC_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kRows * kCols; ++i) sums_[i] = 0;
  }

  /// `depth`: of the tiles, how many values of k are to be added.
  template <class Rows, class Cols>
  FUSEDSC_DEVICE void multiply(const Rows& rows, const Cols& cols, int depth) {
    const int begin = part_ * Tile::kPartDepth;
#pragma unroll 1
    for (int k = begin; k < begin + Tile::kPartDepth && k < depth; k += kRun) {
      A b[kCols][kRun];
#pragma unroll
      for (int j = 0; j < kCols; ++j) read(cols, first_col_ + j * kGridCols, k, b[j]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        A a[kRun];
        read(rows, first_row_ + i * kGridRows, k, a);
#pragma unroll
        for (int j = 0; j < kCols; ++j) {
#pragma unroll
          for (int v = 0; v < kRun; ++v) sums_[i * kCols + j] += a[v] * b[j][v];
        }
      }
    }
  }

  /// Into block memory, [part][row][col] at Tile::kSumsPitch. The operands' tiles are those that were multiplied.
  template <class RowsTile, class ColsTile>
  FUSEDSC_DEVICE void leave(A* sums) const {
    sums += part_ * Tile::kRows * Tile::kSumsPitch;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        sums[(first_row_ + i * kGridRows) * Tile::kSumsPitch + first_col_ + j * kGridCols] = sums_[i * kCols + j];
      }
    }
  }

 private:
  static constexpr int kThreads = kMatrixThreads / Tile::kParts;
  static constexpr int kGridCols = 8, kGridRows = kThreads / kGridCols;
  static constexpr int kRows = Tile::kRows / kGridRows, kCols = Tile::kCols / kGridCols;
  static constexpr int kRun = sizeof(T) == 4 ? 4 : 2;  // values of k read at once

  template <class Operand>
  FUSEDSC_DEVICE static void read(const Operand& operand, int outer, int k, A (&to)[kRun]) {
    Operand::Tile::template read<kRun>(operand.tile, outer, k, to);
    if constexpr (Operand::kSeam) {
      A other[kRun] = {};
      if (operand.other_tile != nullptr) Operand::Tile::template read<kRun>(operand.other_tile, outer, k, other);
      operand.apply(to, other, [&](int i) { return OperandPlace{outer, k + i}; });
    }
  }

  A sums_[kRows * kCols];
  int first_row_, first_col_, part_;
};

}  // namespace fusedsc::gpu

#ifdef FUSEDSC_TF32
#include "fusedsc/common/gpu/matrix_tf32.h"
#endif
#if defined(FUSEDSC_HOST_EXECUTOR)
#include "host_executor/matrix_product_host.h"
#elif defined(__CUDACC__)
#include "fusedsc/common/gpu/matrix_cuda.h"
#elif defined(FUSEDSC_MATRIX_CORES)
#include "fusedsc/common/gpu/matrix_amd.h"
#endif

namespace fusedsc::gpu {

template <class T, class Tile>
struct MatrixProductOf {
#if defined(FUSEDSC_HOST_EXECUTOR)
  using Type = ProductOnHost<T, Tile>;
#elif defined(FUSEDSC_MATRIX_CORES)
  using Type = MatrixCoreProduct<T, Tile>;
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
#if defined(__CUDACC__) && !defined(FUSEDSC_HOST_EXECUTOR)
template <class T, class Tile>
requires(sizeof(T) == 2) struct MatrixProductOf<T, Tile> {
  using Type = TensorCoreProduct<T, Tile>;
};
#endif

template <class T, class Tile>
using MatrixProduct = typename MatrixProductOf<T, Tile>::Type;

}  // namespace fusedsc::gpu
