/// What the pointwise kernels multiply, on its way from memory to a product: what is copied to shared memory, and the
/// prologue that is applied to its elements afterwards.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_cursor.h"

namespace fusedsc::gpu {

/// activation(scale*a + other_scale*other + shift); without `other` the second term is left out.
struct PointwisePrologue {
  const void *scale = nullptr, *shift = nullptr, *other_scale = nullptr;
  Activation activation = Activation::identity;
  PointwiseMatrix other;
};

/// By what the coefficients of an operand's prologue are told apart.
enum class PrologueIndex { none, depth, outer };

/// An operand's place in shared memory. kDepthInner: values of k are neighbours in its tensor. Fused multiply-adds want
/// neighbouring rows; copies that run ahead transpose floats on the way, element by element, if it may cost that
/// (kMayTranspose).
template <class T, class Tile, int kOuter, bool kDepthInner, bool kMayTranspose>
struct OperandTileOf {
  static constexpr bool kTransposes = kMayTranspose && kDepthInner && kCopyStages > 1 && sizeof(T) == 4 && !Tile::kTf32;
  using Type = OperandTile<T, kOuter, Tile::kDepth, kDepthInner && !kTransposes, Tile::kTf32, kTransposes>;
};

/// An operand: where it comes from, and its place in shared memory. kMayHaveOther: its prologue may have a second
/// tensor. kSame: it is the same for all tiles of a block.
template <class T, class Tile_, bool kDepthFirst, PrologueIndex kPrologue, bool kMayHaveOther, bool kSame_ = false>
class OperandSource {
 public:
  static constexpr bool kSame = kSame_;
  using Tile = Tile_;
  using A = Accumulator<T>;

  /// Of the tiles in a stage, and of what stays in shared memory for good.
  FUSEDSC_HOST_DEVICE static constexpr int stage_bytes(bool has_other) {
    const int tiles = kPrologue != PrologueIndex::none && has_other ? 2 : 1;
    return tiles * kTileBytes + (kPrologue == PrologueIndex::depth ? kCoefficientBytes : 0);
  }
  FUSEDSC_HOST_DEVICE static constexpr int fixed_bytes() {
    return kPrologue == PrologueIndex::outer ? kCoefficientBytes : 0;
  }

  FUSEDSC_DEVICE OperandSource(const PointwiseMatrix& matrix, const PointwisePrologue& prologue, int group,
                               int channels)
      : matrix_(matrix), prologue_(prologue), group_(group), first_channel_(group * channels) {}

  FUSEDSC_DEVICE int stage_bytes() const { return stage_bytes(has_other()); }

  /// The coefficients by row or column.
  FUSEDSC_DEVICE void start_fixed(void* memory, int outer, int outer_end) {
    if constexpr (kPrologue == PrologueIndex::outer) {
      fixed_ = static_cast<A*>(memory);
      start_coefficients(fixed_, outer, outer_end);
    }
  }

  /// Copies `window` if it is the first of a tile, else the one after the last.
  FUSEDSC_DEVICE void start(unsigned char* stage, const OperandWindow& window, bool is_first) {
    if (is_first) aim(window);
    cursor_.copy(matrix_, reinterpret_cast<T*>(stage));
    cursor_.advance(matrix_);
    if constexpr (kMayHaveOther && kPrologue != PrologueIndex::none) {
      if (has_other()) {
        other_cursor_.copy(prologue_.other, other_tile(stage));
        other_cursor_.advance(prologue_.other);
      }
    }
    if constexpr (kPrologue == PrologueIndex::depth) {
      start_coefficients(coefficients(stage), k_, k_end_);
      k_ += Tile::kDepth;
    }
  }

  /// The same in two steps, where copies would keep the thread waiting: what fetch() loads, leave() puts into shared
  /// memory.
  FUSEDSC_DEVICE void fetch(const OperandWindow& window, bool is_first) {
    if (is_first) aim(window);
    cursor_.fetch(matrix_);
    if constexpr (kMayHaveOther && kPrologue != PrologueIndex::none) {
      if (has_other()) other_cursor_.fetch(prologue_.other);
    }
    if constexpr (kPrologue == PrologueIndex::depth) {
      fetched_[0] = coefficient(prologue_.scale, A(1));
      fetched_[1] = coefficient(prologue_.shift, A(0));
      if (has_other()) fetched_[2] = coefficient(prologue_.other_scale, A(0));
    }
  }
  FUSEDSC_DEVICE void leave(unsigned char* stage) {
    cursor_.leave(matrix_, reinterpret_cast<T*>(stage));
    cursor_.advance(matrix_);
    if constexpr (kMayHaveOther && kPrologue != PrologueIndex::none) {
      if (has_other()) {
        other_cursor_.leave(prologue_.other, other_tile(stage));
        other_cursor_.advance(prologue_.other);
      }
    }
    if constexpr (kPrologue == PrologueIndex::depth) {
      if (thread_index() < kCoefficients) {
#pragma unroll
        for (int i = 0; i < (kMayHaveOther ? 3 : 2); ++i) {
          coefficients(stage)[i * kCoefficients + thread_index()] = fetched_[i];
        }
      }
      k_ += Tile::kDepth;
    }
  }

  /// For a product. `depth`: how many values of k there are.
  FUSEDSC_DEVICE auto operand(unsigned char* stage, int depth) const {
    const T* tile = reinterpret_cast<const T*>(stage);
    if constexpr (kPrologue == PrologueIndex::none) {
      return PlainOperand<T, Tile>{tile};
    } else {
      const A* scale = kPrologue == PrologueIndex::depth ? coefficients(stage) : fixed_;
      return PrologueOperand<T, Tile, kPrologue == PrologueIndex::depth>{tile,
                                                                         has_other() ? other_tile(stage) : nullptr,
                                                                         scale,
                                                                         scale + kCoefficients,
                                                                         scale + 2 * kCoefficients,
                                                                         prologue_.activation,
                                                                         depth};
    }
  }

 private:
  FUSEDSC_DEVICE void aim(const OperandWindow& window) {
    cursor_.aim(matrix_, group_, window);
    if constexpr (kMayHaveOther && kPrologue != PrologueIndex::none) {
      if (has_other()) other_cursor_.aim(prologue_.other, group_, window);
    }
    k_ = window.k;
    k_end_ = window.k_end;
  }

  static constexpr int kTileBytes = Tile::kElements * static_cast<int>(sizeof(T));
  static constexpr int kCoefficients =
      (kPrologue == PrologueIndex::depth) == Tile::kDepthInner ? Tile::kMinor : Tile::kMajor;
  static constexpr int kCoefficientBytes = 3 * kCoefficients * static_cast<int>(sizeof(A));

  FUSEDSC_DEVICE bool has_other() const { return kMayHaveOther && prologue_.other.data != nullptr; }
  FUSEDSC_DEVICE T* other_tile(unsigned char* stage) const { return reinterpret_cast<T*>(stage + kTileBytes); }
  FUSEDSC_DEVICE A* coefficients(unsigned char* stage) const {
    return reinterpret_cast<A*>(stage + (has_other() ? 2 : 1) * kTileBytes);
  }

  FUSEDSC_DEVICE void start_coefficients(A* to, int begin, int end) const {
    start_coefficients(to, prologue_.scale, A(1), begin, end);
    start_coefficients(to + kCoefficients, prologue_.shift, A(0), begin, end);
    if (has_other()) start_coefficients(to + 2 * kCoefficients, prologue_.other_scale, A(0), begin, end);
  }

  /// 0 beyond the end, so that what is multiplied there is activation(0) = 0.
  FUSEDSC_DEVICE void start_coefficients(A* to, const void* vector, A otherwise, int begin, int end) const {
    for (int i = thread_index(); i < kCoefficients; i += kMatrixThreads) {
      const bool valid = begin + i < end;
      if (vector == nullptr) {
        to[i] = valid ? otherwise : A(0);
      } else {
        const A* from = static_cast<const A*>(vector) + (valid ? first_channel_ + begin + i : 0);
        start_copy<static_cast<int>(sizeof(A))>(to + i, from, valid);
      }
    }
  }

  /// The thread's own, of those from k_ on.
  FUSEDSC_DEVICE A coefficient(const void* vector, A otherwise) const {
    static_assert(kCoefficients <= kMatrixThreads);
    const int k = k_ + thread_index();
    if (k >= k_end_ || thread_index() >= kCoefficients) return A(0);
    return vector != nullptr ? static_cast<const A*>(vector)[first_channel_ + k] : otherwise;
  }

  const PointwiseMatrix& matrix_;
  const PointwisePrologue& prologue_;
  int group_, first_channel_, k_ = 0, k_end_ = 0;
  A* fixed_ = nullptr;
  A fetched_[3];
  OperandCursor<T, Tile, kDepthFirst> cursor_;
  struct None {};
  std::conditional_t<kMayHaveOther && kPrologue != PrologueIndex::none, OperandCursor<T, Tile, kDepthFirst>, None>
      other_cursor_;
};

}  // namespace fusedsc::gpu
