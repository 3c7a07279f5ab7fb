/// What the pointwise kernels multiply, on its way from memory to a product: tensors as matrices of positions and
/// channels, copied to block memory as they are, and the seams that are applied to their elements afterwards.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/matrix.h"
#include "fusedsc/common/gpu/tensor.h"

namespace fusedsc::gpu {

/// A tensor of activations as a matrix [position][channel], the positions of all images one after the other, or a
/// weight as a matrix [output][input].
template <class Void>
struct BasicPointwiseMatrix {
  Void* data = nullptr;
  std::int64_t first = 0, second = 0;         ///< strides
  std::int64_t row_skip = 0, image_skip = 0;  ///< what lies between rows and images, beyond their positions
  std::int64_t group = 0;                     ///< from a group's elements to the next one's
  Divisor by_width, by_area;
  bool is_linear = true;  ///< nothing lies between rows and images
  int run_bytes = 0;      ///< from each multiple of so many bytes on, neighbours can be copied at once; 0: one by one

  FUSEDSC_DEVICE std::int64_t first_offset(int index) const {
    std::int64_t offset = index * first;
    if (!is_linear) {
      const auto number = static_cast<std::uint32_t>(index);
      offset += by_width.quotient(number) * row_skip + by_area.quotient(number) * image_skip;
    }
    return offset;
  }
};

using PointwiseMatrix = BasicPointwiseMatrix<const void>;
using OutputMatrix = BasicPointwiseMatrix<void>;

/// activation(scale*a + other_scale*other + shift); without `other` the second term is left out.
struct PointwiseSeam {
  const void *scale = nullptr, *shift = nullptr, *other_scale = nullptr;
  Activation activation = Activation::identity;
  PointwiseMatrix other;
};

/// A rectangle of an operand that does not reach beyond the ends.
struct OperandWindow {
  int outer, outer_end, k, k_end;
};
struct OperandWindows {
  OperandWindow rows, cols;
};

/// A thread's share of copying an operand to block memory. Each thread has its place in the rows of block memory and
/// goes down them; from one window to the next, `depth` further, only what changes is computed anew.
template <class T, class Tile, bool kDepthFirst>
class OperandCursor {
 public:
  FUSEDSC_DEVICE void aim(const PointwiseMatrix& matrix, int group, const OperandWindow& window) {
    // A division by 2^shift, the runs of a row; there are fewer threads to a row where runs are longer.
    const int shift = log2(Tile::kMinor) - (matrix.run_bytes == 0 ? 0 : matrix.run_bytes == 8 ? kLog8 : kLog8 + 1);
    const int major = thread_index() >> shift;
    const int minor = (thread_index() - (major << shift)) << (log2(Tile::kMinor) - shift);
    const int outer = Tile::kDepthInner ? major : minor, k = Tile::kDepthInner ? minor : major;
    place_ = Tile::place(outer, k);
    outer_left_ = window.outer_end - window.outer - outer;
    k_left_ = window.k_end - window.k - k;
    is_wanted_ = !Tile::kDepthInner || k < (window.k_end - window.k + 15) / 16 * 16;  // the rest is not multiplied
    first_ = kDepthFirst ? window.k + k : window.outer + outer;
    second_ = static_cast<const T*>(matrix.data) + group * matrix.group +
              (kDepthFirst ? window.outer + outer : window.k + k) * matrix.second;
    from_ = second_ + (kMinorFirst || matrix.is_linear ? matrix.first_offset(first_) : 0);
  }

  FUSEDSC_DEVICE void advance(const PointwiseMatrix& matrix) {
    k_left_ -= Tile::kDepth;
    if constexpr (kDepthFirst) {
      first_ += Tile::kDepth;
      if (matrix.is_linear) from_ += Tile::kDepth * matrix.first;
      else if (kMinorFirst) from_ = second_ + matrix.first_offset(first_);
    } else {
      from_ += Tile::kDepth * matrix.second;
    }
  }

  FUSEDSC_DEVICE void copy(const PointwiseMatrix& matrix, T* to) const {
    if (!is_wanted_) return;
    if (matrix.run_bytes == 16) start_runs<kRun16>(matrix, to);
    else if (kHas8 && matrix.run_bytes == 8) start_runs<kRun8>(matrix, to);
    else copy_elements(matrix, to);
  }

  /// Where copies would keep the thread waiting: loads what leave() puts into block memory. Elements that are no runs
  /// are copied by leave() itself.
  FUSEDSC_DEVICE void fetch(const PointwiseMatrix& matrix) {
    if (!is_wanted_) return;
    if (matrix.run_bytes == 16) fetch_runs<kRun16>(matrix);
    else if (kHas8 && matrix.run_bytes == 8) fetch_runs<kRun8>(matrix);
  }
  FUSEDSC_DEVICE void leave(const PointwiseMatrix& matrix, T* to) const {
    if (!is_wanted_) return;
    if (matrix.run_bytes == 16) leave_runs<kRun16>(to);
    else if (kHas8 && matrix.run_bytes == 8) leave_runs<kRun8>(to);
    else copy_elements(matrix, to);
  }

 private:
  static constexpr bool kMinorFirst = Tile::kDepthInner == kDepthFirst;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kRun16 = 16 / kSize;
  static constexpr bool kHas8 = kSize <= 4;
  static constexpr int kRun8 = kHas8 ? 8 / kSize : 1;
  static constexpr int kWords = Tile::kMajor * Tile::kMinor * kSize / 4 / kMatrixThreads;  ///< of a thread's share

  FUSEDSC_HOST_DEVICE static constexpr int log2(int power) {
    int result = 0;
    while (power >> result > 1) ++result;
    return result;
  }
  static constexpr int kLog8 = log2(8 / kSize);  ///< of a run of 8 bytes

  /// A thread's runs of so many elements.
  template <int kRun>
  struct Runs {
    static constexpr int kInRow = Tile::kMinor / kRun, kStep = kMatrixThreads / kInRow, kCount = Tile::kMajor / kStep;
    static_assert(kMatrixThreads % kInRow == 0 && Tile::kMajor % kStep == 0);
  };

  /// use(source), where source(i) is where the i-th run comes from.
  template <int kRun, class Use>
  FUSEDSC_DEVICE void with_source(const PointwiseMatrix& matrix, const Use& use) const {
    constexpr int kStep = Runs<kRun>::kStep;
    if (kMinorFirst || matrix.is_linear) {
      const std::int64_t stride = kStep * (kMinorFirst ? matrix.second : matrix.first);
      use([&](int i) { return from_ + i * stride; });
    } else {
      use([&](int i) { return from_ + matrix.first_offset(first_ + i * kStep); });
    }
  }

  template <int kRun>
  FUSEDSC_DEVICE bool exists(int i) const {
    const int majors = Tile::kDepthInner ? outer_left_ : k_left_, minors = Tile::kDepthInner ? k_left_ : outer_left_;
    return minors > 0 && i * Runs<kRun>::kStep < majors;
  }

  template <int kRun>
  FUSEDSC_DEVICE T* place_of(T* to, int run) const {
    return to + Tile::below(place_, run * Runs<kRun>::kStep);
  }

  template <int kRun>
  FUSEDSC_DEVICE void start_runs(const PointwiseMatrix& matrix, T* to) const {
    with_source<kRun>(matrix, [&](const auto& source) {
#pragma unroll
      for (int i = 0; i < Runs<kRun>::kCount; ++i) {
        start_copy<kRun * kSize>(place_of<kRun>(to, i), source(i), exists<kRun>(i));
      }
    });
  }

  template <int kRun>
  FUSEDSC_DEVICE void fetch_runs(const PointwiseMatrix& matrix) {
    constexpr int kRunWords = kRun * kSize / 4;
    with_source<kRun>(matrix, [&](const auto& source) {
#pragma unroll
      for (int i = 0; i < Runs<kRun>::kCount; ++i) {
        Vector<T, kRun> run{};
        if (exists<kRun>(i)) run = load<kRun>(source(i));
#pragma unroll
        for (int w = 0; w < kRunWords; ++w) fetched_[i * kRunWords + w] = run.words[w];
      }
    });
  }

  template <int kRun>
  FUSEDSC_DEVICE void leave_runs(T* to) const {
    constexpr int kRunWords = kRun * kSize / 4;
#pragma unroll
    for (int i = 0; i < Runs<kRun>::kCount; ++i) {
      Aligned<std::uint32_t, kRunWords> run;
#pragma unroll
      for (int w = 0; w < kRunWords; ++w) run.elements[w] = fetched_[i * kRunWords + w];
      *reinterpret_cast<Aligned<std::uint32_t, kRunWords>*>(place_of<kRun>(to, i)) = run;
    }
  }

  FUSEDSC_DEVICE void copy_elements(const PointwiseMatrix& matrix, T* to) const {
    if constexpr (kSize >= 4) {
      start_runs<1>(matrix, to);
    } else {
      constexpr int kAtOnce = 4;  // loads under way
      static_assert(Runs<1>::kCount % kAtOnce == 0);
      with_source<1>(matrix, [&](const auto& source) {
#pragma unroll 1
        for (int first = 0; first < Runs<1>::kCount; first += kAtOnce) {
          T elements[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) elements[i] = exists<1>(first + i) ? *source(first + i) : T{};
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) *place_of<1>(to, first + i) = elements[i];
        }
      });
    }
  }

  const T *second_, *from_;  ///< what the second index says of where to begin; and the first one, if it can be added
  int first_, place_;
  int outer_left_, k_left_;  ///< rows (or columns) and values of k from the thread's first ones to the ends
  bool is_wanted_;
  std::uint32_t fetched_[kWords];
};

/// By what the coefficients of an operand's seam are told apart.
enum class SeamIndex { none, depth, outer };

/// An operand: where it comes from, and its place in block memory. kMayHaveOther: its seam may have a second tensor.
/// kSame: it is the same for all tiles of a block.
template <class T, class Tile_, bool kDepthFirst, SeamIndex kSeam, bool kMayHaveOther, bool kSame_ = false>
class OperandSource {
 public:
  static constexpr bool kSame = kSame_;
  using Tile = Tile_;
  using A = Accumulator<T>;

  /// Of the tiles in a stage, and of what stays in block memory for good.
  FUSEDSC_HOST_DEVICE static constexpr int stage_bytes(bool has_other) {
    const int tiles = kSeam != SeamIndex::none && has_other ? 2 : 1;
    return tiles * kTileBytes + (kSeam == SeamIndex::depth ? kCoefficientBytes : 0);
  }
  FUSEDSC_HOST_DEVICE static constexpr int fixed_bytes() { return kSeam == SeamIndex::outer ? kCoefficientBytes : 0; }

  FUSEDSC_DEVICE OperandSource(const PointwiseMatrix& matrix, const PointwiseSeam& seam, int group, int channels)
      : matrix_(matrix), seam_(seam), group_(group), first_channel_(group * channels) {}

  FUSEDSC_DEVICE int stage_bytes() const { return stage_bytes(has_other()); }

  /// The coefficients by row or column.
  FUSEDSC_DEVICE void start_fixed(void* memory, int outer, int outer_end) {
    if constexpr (kSeam == SeamIndex::outer) {
      fixed_ = static_cast<A*>(memory);
      start_coefficients(fixed_, outer, outer_end);
    }
  }

  /// Copies `window` if it is the first of a tile, else the one after the last.
  FUSEDSC_DEVICE void start(unsigned char* stage, const OperandWindow& window, bool is_first) {
    if (is_first) aim(window);
    cursor_.copy(matrix_, reinterpret_cast<T*>(stage));
    cursor_.advance(matrix_);
    if constexpr (kMayHaveOther && kSeam != SeamIndex::none) {
      if (has_other()) {
        other_cursor_.copy(seam_.other, other_tile(stage));
        other_cursor_.advance(seam_.other);
      }
    }
    if constexpr (kSeam == SeamIndex::depth) {
      start_coefficients(coefficients(stage), k_, k_end_);
      k_ += Tile::kDepth;
    }
  }

  /// The same in two steps, where copies would keep the thread waiting: what fetch() loads, leave() puts into block
  /// memory.
  FUSEDSC_DEVICE void fetch(const OperandWindow& window, bool is_first) {
    if (is_first) aim(window);
    cursor_.fetch(matrix_);
    if constexpr (kMayHaveOther && kSeam != SeamIndex::none) {
      if (has_other()) other_cursor_.fetch(seam_.other);
    }
    if constexpr (kSeam == SeamIndex::depth) {
      fetched_[0] = coefficient(seam_.scale, A(1));
      fetched_[1] = coefficient(seam_.shift, A(0));
      if (has_other()) fetched_[2] = coefficient(seam_.other_scale, A(0));
    }
  }
  FUSEDSC_DEVICE void leave(unsigned char* stage) {
    cursor_.leave(matrix_, reinterpret_cast<T*>(stage));
    cursor_.advance(matrix_);
    if constexpr (kMayHaveOther && kSeam != SeamIndex::none) {
      if (has_other()) {
        other_cursor_.leave(seam_.other, other_tile(stage));
        other_cursor_.advance(seam_.other);
      }
    }
    if constexpr (kSeam == SeamIndex::depth) {
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
    if constexpr (kSeam == SeamIndex::none) {
      return PlainOperand<T, Tile>{tile};
    } else {
      const A* scale = kSeam == SeamIndex::depth ? coefficients(stage) : fixed_;
      return SeamOperand<T, Tile, kSeam == SeamIndex::depth>{tile,
                                                             has_other() ? other_tile(stage) : nullptr,
                                                             scale,
                                                             scale + kCoefficients,
                                                             scale + 2 * kCoefficients,
                                                             seam_.activation,
                                                             depth};
    }
  }

 private:
  FUSEDSC_DEVICE void aim(const OperandWindow& window) {
    cursor_.aim(matrix_, group_, window);
    if constexpr (kMayHaveOther && kSeam != SeamIndex::none) {
      if (has_other()) other_cursor_.aim(seam_.other, group_, window);
    }
    k_ = window.k;
    k_end_ = window.k_end;
  }

  static constexpr int kTileBytes = Tile::kElements * static_cast<int>(sizeof(T));
  static constexpr int kCoefficients = (kSeam == SeamIndex::depth) == Tile::kDepthInner ? Tile::kMinor : Tile::kMajor;
  static constexpr int kCoefficientBytes = 3 * kCoefficients * static_cast<int>(sizeof(A));

  FUSEDSC_DEVICE bool has_other() const { return kMayHaveOther && seam_.other.data != nullptr; }
  FUSEDSC_DEVICE T* other_tile(unsigned char* stage) const { return reinterpret_cast<T*>(stage + kTileBytes); }
  FUSEDSC_DEVICE A* coefficients(unsigned char* stage) const {
    return reinterpret_cast<A*>(stage + (has_other() ? 2 : 1) * kTileBytes);
  }

  FUSEDSC_DEVICE void start_coefficients(A* to, int begin, int end) const {
    start_coefficients(to, seam_.scale, A(1), begin, end);
    start_coefficients(to + kCoefficients, seam_.shift, A(0), begin, end);
    if (has_other()) start_coefficients(to + 2 * kCoefficients, seam_.other_scale, A(0), begin, end);
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
  const PointwiseSeam& seam_;
  int group_, first_channel_, k_ = 0, k_end_ = 0;
  A* fixed_ = nullptr;
  A fetched_[3];
  OperandCursor<T, Tile, kDepthFirst> cursor_;
  struct None {};
  std::conditional_t<kMayHaveOther && kSeam != SeamIndex::none, OperandCursor<T, Tile, kDepthFirst>, None>
      other_cursor_;
};

}  // namespace fusedsc::gpu
