/// What the pointwise kernels multiply, on its way from memory to a product: tensors as matrices of positions and
/// channels, copied to block memory as they are, and the seams that are applied to their elements afterwards.
#pragma once

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

  FUSEDSC_DEVICE std::int64_t offset(int position, int channel) const {
    std::int64_t offset = position * first + channel * second;
    if (!is_linear) {
      const auto number = static_cast<std::uint32_t>(position);
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

/// A place of an operand's tile, and what belongs there.
template <class T, class Tile, bool kDepthFirst>
struct OperandElement {
  int place;
  bool valid;         ///< else it is 0
  bool wanted;        ///< else it is not multiplied
  std::int64_t from;  ///< offset; 0 if it is not valid

  FUSEDSC_DEVICE OperandElement(const PointwiseMatrix& matrix, const OperandWindow& window, int major, int minor) {
    const int outer = Tile::kDepthInner ? major : minor, k = Tile::kDepthInner ? minor : major;
    place = Tile::place(outer, k);
    wanted = k < (window.k_end - window.k + 15) / 16 * 16;
    valid = window.outer + outer < window.outer_end && window.k + k < window.k_end;
    const int first = kDepthFirst ? window.k + k : window.outer + outer;
    const int second = kDepthFirst ? window.outer + outer : window.k + k;
    from = valid ? matrix.offset(first, second) : 0;
  }
};

/// Copies kRun neighbours at a time.
template <class T, class Tile, bool kDepthFirst, int kRun>
FUSEDSC_DEVICE void copy_runs(T* to, const PointwiseMatrix& matrix, const T* from, const OperandWindow& window) {
  constexpr int kRuns = Tile::kMinor / kRun;
#pragma unroll 4
  for (int i = thread_index(); i < Tile::kMajor * kRuns; i += kMatrixThreads) {
    const OperandElement<T, Tile, kDepthFirst> run(matrix, window, i / kRuns, i % kRuns * kRun);
    if (!run.wanted) continue;
    start_copy<kRun* static_cast<int>(sizeof(T))>(to + run.place, from + run.from, run.valid);
  }
}

/// Copies elements one by one, a few loads under way at once.
template <class T, class Tile, bool kDepthFirst>
FUSEDSC_DEVICE void copy_elements(T* to, const PointwiseMatrix& matrix, const T* from, const OperandWindow& window) {
  constexpr int kAtOnce = 4, kElements = Tile::kMajor * Tile::kMinor;
  static_assert(kElements % (kAtOnce * kMatrixThreads) == 0);
#pragma unroll 1
  for (int first = thread_index(); first < kElements; first += kAtOnce * kMatrixThreads) {
    T elements[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kMatrixThreads;
      const OperandElement<T, Tile, kDepthFirst> element(matrix, window, i / Tile::kMinor, i % Tile::kMinor);
      elements[j] = element.valid ? from[element.from] : T{};
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kMatrixThreads, major = i / Tile::kMinor, minor = i % Tile::kMinor;
      to[Tile::kDepthInner ? Tile::place(major, minor) : Tile::place(minor, major)] = elements[j];
    }
  }
}

template <class T, class Tile, bool kDepthFirst>
FUSEDSC_DEVICE void copy_operand(T* to, const PointwiseMatrix& matrix, int group, const OperandWindow& window) {
  constexpr int kSize = static_cast<int>(sizeof(T));
  const T* from = static_cast<const T*>(matrix.data) + group * matrix.group;
  if (matrix.run_bytes == 16) {
    copy_runs<T, Tile, kDepthFirst, 16 / kSize>(to, matrix, from, window);
  } else if (kSize <= 4 && matrix.run_bytes == 8) {
    copy_runs<T, Tile, kDepthFirst, kSize <= 4 ? 8 / kSize : 1>(to, matrix, from, window);
  } else {
    copy_elements<T, Tile, kDepthFirst>(to, matrix, from, window);
  }
}

/// By what the coefficients of an operand's seam are told apart.
enum class SeamIndex { none, depth, outer };

/// An operand: where it comes from, and its place in block memory.
template <class T, class Tile_, bool kDepthFirst, SeamIndex kSeam>
class OperandSource {
 public:
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

  FUSEDSC_DEVICE int stage_bytes() const { return stage_bytes(seam_.other.data != nullptr); }

  /// The coefficients by row or column.
  FUSEDSC_DEVICE void start_fixed(void* memory, int outer, int outer_end) {
    if constexpr (kSeam == SeamIndex::outer) {
      fixed_ = static_cast<A*>(memory);
      start_coefficients(fixed_, outer, outer_end);
    }
  }

  FUSEDSC_DEVICE void start(unsigned char* stage, const OperandWindow& window) const {
    copy_operand<T, Tile, kDepthFirst>(reinterpret_cast<T*>(stage), matrix_, group_, window);
    if constexpr (kSeam != SeamIndex::none) {
      if (seam_.other.data != nullptr) {
        copy_operand<T, Tile, kDepthFirst>(other_tile(stage), seam_.other, group_, window);
      }
    }
    if constexpr (kSeam == SeamIndex::depth) start_coefficients(coefficients(stage), window.k, window.k_end);
  }

  /// For a product. `depth`: how many values of k there are.
  FUSEDSC_DEVICE auto operand(unsigned char* stage, int depth) const {
    const T* tile = reinterpret_cast<const T*>(stage);
    if constexpr (kSeam == SeamIndex::none) {
      return PlainOperand<T, Tile>{tile};
    } else {
      const A* scale = kSeam == SeamIndex::depth ? coefficients(stage) : fixed_;
      return SeamOperand<T, Tile, kSeam == SeamIndex::depth>{tile,
                                                             seam_.other.data != nullptr ? other_tile(stage) : nullptr,
                                                             scale,
                                                             scale + kCoefficients,
                                                             scale + 2 * kCoefficients,
                                                             seam_.activation,
                                                             depth};
    }
  }

 private:
  static constexpr int kTileBytes = Tile::kElements * static_cast<int>(sizeof(T));
  static constexpr int kCoefficients = (kSeam == SeamIndex::depth) == Tile::kDepthInner ? Tile::kMinor : Tile::kMajor;
  static constexpr int kCoefficientBytes = 3 * kCoefficients * static_cast<int>(sizeof(A));

  FUSEDSC_DEVICE T* other_tile(unsigned char* stage) const { return reinterpret_cast<T*>(stage + kTileBytes); }
  FUSEDSC_DEVICE A* coefficients(unsigned char* stage) const {
    return reinterpret_cast<A*>(stage + (seam_.other.data != nullptr ? 2 : 1) * kTileBytes);
  }

  FUSEDSC_DEVICE void start_coefficients(A* to, int begin, int end) const {
    start_coefficients(to, seam_.scale, A(1), begin, end);
    start_coefficients(to + kCoefficients, seam_.shift, A(0), begin, end);
    if (seam_.other.data != nullptr) start_coefficients(to + 2 * kCoefficients, seam_.other_scale, A(0), begin, end);
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

  const PointwiseMatrix& matrix_;
  const PointwiseSeam& seam_;
  int group_, first_channel_;
  A* fixed_ = nullptr;
};

/// Computes one tile after the other. Copies run ahead of products, across tiles too.
/// window(tile, step) -> {rows, columns}; at_step(stage's rows, depth); finish(tile, sums), sums as Product::leave left
/// them.
template <class T, class Tile, class Rows, class Cols>
class TileLoop {
 public:
  using A = Accumulator<T>;

  FUSEDSC_HOST_DEVICE static constexpr std::size_t memory_bytes(bool rows_other, bool cols_other) {
    return static_cast<std::size_t>(kSumsBytes + Rows::fixed_bytes() + Cols::fixed_bytes() +
                                    kCopyStages * (Rows::stage_bytes(rows_other) + Cols::stage_bytes(cols_other)));
  }

  FUSEDSC_DEVICE TileLoop(Rows& rows, Cols& cols)
      : rows_(rows), cols_(cols), stage_bytes_(rows.stage_bytes() + cols.stage_bytes()) {
    memory_ = static_cast<unsigned char*>(block_memory());
  }

  /// The windows' beginnings and ends in rows and columns stay the same for all tiles.
  FUSEDSC_DEVICE void start_fixed(const OperandWindow& rows, const OperandWindow& cols) {
    rows_.start_fixed(memory_ + kSumsBytes, rows.outer, rows.outer_end);
    cols_.start_fixed(memory_ + kSumsBytes + Rows::fixed_bytes(), cols.outer, cols.outer_end);
  }

  FUSEDSC_DEVICE A* sums() const { return reinterpret_cast<A*>(memory_); }

  template <class Window, class AtStep, class Finish>
  FUSEDSC_DEVICE void run(int tiles, int steps, int depth, const Window& window, const AtStep& at_step,
                          const Finish& finish) {
    MatrixProduct<T, Tile> product;
    int next_tile = 0, next_step = 0;
    const auto start_next = [&](int slot) {
      if (next_tile < tiles) {
        OperandWindow rows, cols;
        window(next_tile, next_step, rows, cols);
        rows_.start(stage(slot), rows);
        cols_.start(stage(slot) + rows_.stage_bytes(), cols);
        if (++next_step == steps) {
          next_step = 0;
          ++next_tile;
        }
      }
      commit_copies();
    };
    for (int slot = 0; slot < kCopyStages - 1; ++slot) start_next(slot);
    int slot = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      product.clear();
      for (int step = 0; step < steps; ++step) {
        wait_for_copies<kCopyStages - 2>();
        block_barrier();
        start_next(slot == 0 ? kCopyStages - 1 : slot - 1);
        const int left = depth - step * Tile::kDepth;
        const auto rows = rows_.operand(stage(slot), left);
        at_step(rows, left);
        product.multiply(rows, cols_.operand(stage(slot) + rows_.stage_bytes(), left), left);
        slot = slot == kCopyStages - 1 ? 0 : slot + 1;
      }
      product.leave(sums());
      block_barrier();
      finish(tile);
    }
  }

 private:
  static constexpr int kSumsBytes = Tile::kSums * static_cast<int>(sizeof(A));

  FUSEDSC_DEVICE unsigned char* stage(int slot) const {
    return memory_ + kSumsBytes + Rows::fixed_bytes() + Cols::fixed_bytes() + slot * stage_bytes_;
  }

  Rows& rows_;
  Cols& cols_;
  int stage_bytes_;
  unsigned char* memory_;
};

}  // namespace fusedsc::gpu
