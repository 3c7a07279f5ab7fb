/// Tensors as matrices of positions and channels, and a thread's share of copying them to shared memory as they are.
#pragma once

#include "fusedsc/common/gpu/products/matrix.h"
#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/global_memory.h"

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

/// A rectangle of an operand that does not reach beyond the ends.
struct OperandWindow {
  int outer, outer_end, k, k_end;
};
struct OperandWindows {
  OperandWindow rows, cols;
};

/// A thread's share of copying an operand to shared memory. Each thread has its place in the rows of shared memory and
/// goes down them (along them, if they are transposed); from one window to the next, `depth` further, only what changes
/// is computed anew.
template <class T, class Tile, bool kDepthFirst>
class OperandCursor {
 public:
  FUSEDSC_DEVICE void aim(const PointwiseMatrix& matrix, int group, const OperandWindow& window) {
    // A division by 2^shift, the runs of a row; there are fewer threads to a row where runs are longer.
    const int run = copies_elements(matrix) ? log2(kElementRun) : matrix.run_bytes == 8 ? kLog8 : kLog8 + 1;
    const int shift = log2(Tile::kCopiedMinor) - run;
    const int major = thread_index() >> shift;
    const int minor = (thread_index() - (major << shift)) << run;
    const int outer = Tile::kCopiedDepthInner ? major : minor, k = Tile::kCopiedDepthInner ? minor : major;
    place_ = Tile::place(outer, k);
    outer_left_ = window.outer_end - window.outer - outer;
    k_left_ = window.k_end - window.k - k;
    // What is not multiplied is left out.
    is_wanted_ = !Tile::kCopiedDepthInner || Tile::kDepth <= 16 || k < (window.k_end - window.k + 15) / 16 * 16;
    first_ = kDepthFirst ? window.k + k : window.outer + outer;
    second_ = static_cast<const T*>(matrix.data) + group * matrix.group +
              (kDepthFirst ? window.outer + outer : window.k + k) * matrix.second;
    from_ = second_ + (kMinorFirst || matrix.is_linear ? matrix.first_offset(first_) : 0);
    to_neighbour_ = distance_to_neighbour(matrix);
  }

  FUSEDSC_DEVICE void advance(const PointwiseMatrix& matrix) {
    k_left_ -= Tile::kDepth;
    if constexpr (kDepthFirst) {
      first_ += Tile::kDepth;
      if (matrix.is_linear) from_ += Tile::kDepth * matrix.first;
      else if (kMinorFirst) from_ = second_ + matrix.first_offset(first_);
      to_neighbour_ = distance_to_neighbour(matrix);
    } else {
      from_ += Tile::kDepth * matrix.second;
    }
  }

  FUSEDSC_DEVICE void copy(const PointwiseMatrix& matrix, T* to) const {
    if (!is_wanted_) return;
    if (copies_elements(matrix)) copy_elements(matrix, to);
    else if (kHas8 && matrix.run_bytes == 8) start_runs<kRun8>(matrix, to);
    else start_runs<kRun16>(matrix, to);
  }

  /// Where copies would keep the thread waiting: loads what leave() puts into shared memory.
  FUSEDSC_DEVICE void fetch(const PointwiseMatrix& matrix) {
    if (!is_wanted_) return;
    if (copies_elements(matrix)) fetch_elements(matrix);
    else if (kHas8 && matrix.run_bytes == 8) fetch_runs<kRun8>(matrix);
    else fetch_runs<kRun16>(matrix);
  }
  FUSEDSC_DEVICE void leave(const PointwiseMatrix& matrix, T* to) const {
    if (!is_wanted_) return;
    if (copies_elements(matrix)) leave_runs<kElementRun>(to);
    else if (kHas8 && matrix.run_bytes == 8) leave_runs<kRun8>(to);
    else leave_runs<kRun16>(to);
  }

 private:
  static constexpr bool kMinorFirst = Tile::kCopiedDepthInner == kDepthFirst;
  static constexpr int kSize = static_cast<int>(sizeof(T)), kRun16 = 16 / kSize;
  static constexpr bool kHas8 = kSize <= 4;
  static constexpr int kRun8 = kHas8 ? 8 / kSize : 1;
  static constexpr int kElementRun = kSize == 2 ? 2 : 1;  ///< elements loaded one by one that are left as a word
  /// Where a load in a branch of its own would be waited for at its end: what does not exist is loaded from the
  /// tensor's start, and 0 when it goes to shared memory.
  static constexpr bool kLoadsAlways = !kCopiesRunAhead;
  static constexpr int kWords =
      Tile::kCopiedMajor * Tile::kCopiedMinor * kSize / 4 / kMatrixThreads;  ///< of a thread's share

  /// One by one.
  FUSEDSC_DEVICE static bool copies_elements(const PointwiseMatrix& matrix) {
    return Tile::kTransposed || matrix.run_bytes == 0;
  }

  FUSEDSC_HOST_DEVICE static constexpr int log2(int power) {
    int result = 0;
    while (power >> result > 1) ++result;
    return result;
  }
  static constexpr int kLog8 = log2(8 / kSize);  ///< of a run of 8 bytes

  /// A thread's runs of so many elements.
  template <int kRun>
  struct Runs {
    static constexpr int kInRow = Tile::kCopiedMinor / kRun, kStep = kMatrixThreads / kInRow,
                         kCount = Tile::kCopiedMajor / kStep;
    static_assert(kMatrixThreads % kInRow == 0 && Tile::kCopiedMajor % kStep == 0);
  };

  /// use(source), where source(i) is where the i-th run comes from.
  template <int kRun, class Use>
  FUSEDSC_DEVICE void with_source(const PointwiseMatrix& matrix, const Use& use) const {
    constexpr int kStep = Runs<kRun>::kStep;
    if (kMinorFirst || matrix.is_linear) {
      const std::int64_t stride = kStep * (kMinorFirst ? matrix.second : matrix.first);
      use([&](int i) { return in_global_memory(from_ + i * stride); });
    } else {
      use([&](int i) { return in_global_memory(from_ + matrix.first_offset(first_ + i * kStep)); });
    }
  }

  template <int kRun>
  FUSEDSC_DEVICE bool exists(int i) const {
    const int majors = Tile::kCopiedDepthInner ? outer_left_ : k_left_,
              minors = Tile::kCopiedDepthInner ? k_left_ : outer_left_;
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
    [[maybe_unused]] const T* const start = static_cast<const T*>(matrix.data);
    with_source<kRun>(matrix, [&](const auto& source) {
#pragma unroll
      for (int i = 0; i < Runs<kRun>::kCount; ++i) {
        Vector<T, kRun> run{};
        if constexpr (kLoadsAlways) run = load<kRun>(in_global_memory(exists<kRun>(i) ? source(i) : start));
        else if (exists<kRun>(i)) run = load<kRun>(source(i));
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
      const bool is_kept = !kLoadsAlways || kRun == kElementRun || exists<kRun>(i);
#pragma unroll
      for (int w = 0; w < kRunWords; ++w) run.elements[w] = is_kept ? fetched_[i * kRunWords + w] : 0;
      *reinterpret_cast<Aligned<std::uint32_t, kRunWords>*>(place_of<kRun>(to, i)) = run;
    }
  }

  /// From a run's first element to the second one.
  FUSEDSC_DEVICE std::int64_t distance_to_neighbour(const PointwiseMatrix& matrix) const {
    if (kElementRun == 1 || !copies_elements(matrix)) return 0;
    return kMinorFirst ? matrix.first_offset(first_ + 1) - matrix.first_offset(first_) : matrix.second;
  }

  /// The words of a run whose elements may lie anywhere.
  FUSEDSC_DEVICE Vector<T, kElementRun> elements(const T* from, bool exists) const {
    Vector<T, kElementRun> run{};
    if constexpr (kElementRun == 1) {
      if (exists) run = load<1>(from);
    } else {
      const int minors = Tile::kCopiedDepthInner ? k_left_ : outer_left_;
      std::uint32_t second = 0;
      if (exists) run.words[0] = from->bits;
      if (exists && minors > 1) second = from[to_neighbour_].bits;
      run.words[0] |= second << 16;
    }
    return run;
  }

  FUSEDSC_DEVICE void fetch_elements(const PointwiseMatrix& matrix) {
    constexpr int kRunWords = Vector<T, kElementRun>::kWords;
    with_source<kElementRun>(matrix, [&](const auto& source) {
#pragma unroll
      for (int i = 0; i < Runs<kElementRun>::kCount; ++i) {
        const auto run = elements(source(i), exists<kElementRun>(i));
#pragma unroll
        for (int w = 0; w < kRunWords; ++w) fetched_[i * kRunWords + w] = run.words[w];
      }
    });
  }

  FUSEDSC_DEVICE void copy_elements(const PointwiseMatrix& matrix, T* to) const {
    if constexpr (kSize >= 4) {
      start_runs<1>(matrix, to);
    } else {
      constexpr int kAtOnce = 4;  // runs under way
      static_assert(Runs<kElementRun>::kCount % kAtOnce == 0);
      with_source<kElementRun>(matrix, [&](const auto& source) {
#pragma unroll 1
        for (int first = 0; first < Runs<kElementRun>::kCount; first += kAtOnce) {
          Vector<T, kElementRun> runs[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) runs[i] = elements(source(first + i), exists<kElementRun>(first + i));
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            *reinterpret_cast<std::uint32_t*>(place_of<kElementRun>(to, first + i)) = runs[i].words[0];
          }
        }
      });
    }
  }

  const T *second_, *from_;  ///< what the second index says of where to begin; and the first one, if it can be added
  std::int64_t to_neighbour_;
  int first_, place_;
  int outer_left_, k_left_;  ///< rows (or columns) and values of k from the thread's first ones to the ends
  bool is_wanted_;
  std::uint32_t fetched_[kWords];
};

}  // namespace fusedsc::gpu
