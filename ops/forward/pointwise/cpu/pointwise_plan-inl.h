/// What the pointwise passes share: the weight in the shape that the matrix products read, and how large tiles are.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_PLAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_PLAN_INL_H_
#undef FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_PLAN_INL_H_
#else
#define FUSEDSC_FORWARD_POINTWISE_CPU_POINTWISE_PLAN_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/patch-inl.h"
#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/forward/pointwise/cpu/gemm-inl.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/execution.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Positions of a tile with `elements` elements of T per position: its tensors fit half of the second-level cache, and
/// its lines are long where they run along the positions. A multiple of what the register blocks divide into well.
template <class Major, class T>
std::int64_t tile_positions(std::int64_t elements) {
  constexpr std::int64_t kFew = 56, kMost = Major::kChannelMajor ? 896 : 448;
  constexpr std::int64_t kCache = (512 << 10) / sizeof(T);
  return std::clamp(kCache / elements / kFew * kFew, kFew, kMost);
}

/// Positions per line from which channel-major products pay: shorter lines leave much of their last vector empty.
template <class T>
inline constexpr std::int64_t kLeastLine = 4 * kLanes<T>;

/// A weight [M, C/groups, 1, 1] as one matrix per group, [M/groups][C/groups] or, transposed, [C/groups][M/groups],
/// lines padded to whole vectors. The matrix is a tile of the weight seen as a tensor, one position per line, so the
/// tiles' code converts and transposes it.
template <class View>
struct WeightMatrix {
  View view;
  std::int64_t groups, lines, columns;  ///< lines and columns of a group
  bool transposed;

  WeightMatrix(const View& weight, std::int64_t groups_, bool transposed_)
      : view(weight),
        groups(groups_),
        lines(weight.sizes[0] / groups_),
        columns(weight.sizes[1]),
        transposed(transposed_) {
    view.sizes = {1, weight.sizes[1], 1, weight.sizes[0]};
    view.strides = {0, weight.strides[1], 0, weight.strides[0]};
    if (!transposed) return;
    std::swap(view.sizes[1], view.sizes[3]);
    std::swap(view.strides[1], view.strides[3]);
    std::swap(lines, columns);
  }

  /// Some lines of a group as part of `view`.
  TilePart part(std::int64_t group, const Range& range) const {
    return {.column = (transposed ? 0 : group * lines) + range.begin,
            .positions = range.size(),
            .channel = transposed ? group * columns : 0,
            .channels = columns};
  }

  /// Whether the weight's own memory is such a matrix (but for the padding).
  template <class T>
  bool in_place() const {
    return PositionMajor<T>::is_patch(view);
  }

  template <class T>
  auto line(std::int64_t group) const {
    const TilePart first = part(group, {});
    return element<T>(view, 0, first.channel, 0, first.column);
  }
};

/// Lanes worth using to copy or add `elements` elements.
inline std::int64_t weight_lanes(const Execution& execution, std::int64_t elements, std::int64_t lines) {
  constexpr std::int64_t kElementsPerLane = 1 << 16;
  return std::clamp<std::int64_t>(elements / kElementsPerLane, 1, std::min<std::int64_t>(execution.threads, lines));
}

/// The weight as the products read it: as vectors, copied into panels; or, element by element, in place if it can be.
template <class T>
class PackedWeight {
 public:
  enum class Role { vectors, scalars };

  /// `blocks`: of the products that read it.
  PackedWeight(const ConstTensorView& weight, std::int64_t groups, bool transposed, Role role, Arena& arena,
               const GemmBlocks& blocks = {})
      : matrix_(weight, groups, transposed),
        role_(role),
        blocks_(blocks),
        in_place_(weight.dtype == kComputeType<T> && (role == Role::scalars || has_vectors())),
        size_(matrix_.lines * round_up(matrix_.columns, kLanes<T>)) {
    if (!in_place_) packed_ = arena.take<T>(groups * size_);
  }

  /// Fills the copy, if there is one. To be called once, before the weight is used.
  void pack(const Execution& execution) {
    if (in_place_) return;
    const std::int64_t lanes = weight_lanes(execution, matrix_.groups * size_, matrix_.lines);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      const Range lines = part_of(matrix_.lines, lanes, lane);
      for (std::int64_t g = 0; g < matrix_.groups; ++g) {
        role_ == Role::vectors ? pack_panels(g, lines) : pack_lines(g, lines);
      }
    });
  }

  /// Makes group g the product's B, with as many columns and as much depth as the matrix has columns and lines.
  void set_vectors(std::int64_t g, Gemm<T>& product) const {
    product.blocks = blocks_;
    product.b_panels = !in_place_;
    product.b = in_place_ ? matrix_.template line<T>(g) : packed_ + g * size_;
    product.b_depth = in_place_ ? matrix_.view.strides[3] : 0;
  }

  /// Makes group g the product's A: its lines the product's rows or, transposed, its depth.
  void set_scalars(std::int64_t g, bool lines_are_rows, Gemm<T>& product) const {
    std::int64_t line = round_up(matrix_.columns, kLanes<T>), column = 1;
    product.blocks = blocks_;
    product.a = packed_ + g * size_;
    if (in_place_) {
      product.a = matrix_.template line<T>(g);
      line = matrix_.view.strides[3];
      column = matrix_.view.strides[1];
    }
    product.a_row = lines_are_rows ? line : column;
    product.a_depth = lines_are_rows ? column : line;
  }

 private:
  void pack_lines(std::int64_t g, const Range& lines) {
    const std::int64_t pitch = round_up(matrix_.columns, kLanes<T>);
    load_tile<T>(matrix_.view, matrix_.part(g, lines), {}, packed_ + g * size_ + lines.begin * pitch);
  }

  void pack_panels(std::int64_t g, const Range& lines) {
    const ColumnStrips<T> strips(matrix_.columns, blocks_.vectors);
    for (std::int64_t i = 0; i < strips.count; ++i) {
      const Range vectors = strips.strip(i);
      const std::int64_t first = vectors.begin * kLanes<T>, pitch = vectors.size() * kLanes<T>;
      TilePart part = matrix_.part(g, lines);
      part.channel += first;
      part.channels = std::min(pitch, matrix_.columns - first);
      load_tile<T>(matrix_.view, part, {}, packed_ + g * size_ + first * matrix_.lines + lines.begin * pitch);
    }
  }

  /// Whether the weight itself has whole vectors, in lines that do not all share a few places of the first-level cache.
  bool has_vectors() const {
    constexpr std::int64_t kVectorsApart = 8;
    return matrix_.template in_place<T>() && matrix_.columns % kLanes<T> == 0 &&
           matrix_.view.strides[3] % (kVectorsApart * kCacheLine / static_cast<std::int64_t>(sizeof(T))) != 0;
  }

  WeightMatrix<ConstTensorView> matrix_;
  Role role_;
  GemmBlocks blocks_;
  bool in_place_;
  std::int64_t size_;  ///< elements of a group's copy
  T* packed_ = nullptr;
};

/// A weight gradient in the making: `copies` partial sums, added in their order at the end.
template <class T>
class WeightGradient {
 public:
  WeightGradient(const TensorView& grad_weight, std::int64_t groups, bool transposed, std::int64_t copies, Arena& arena)
      : matrix_(grad_weight, groups, transposed),
        copies_(copies),
        in_place_(copies == 1 && matrix_.template in_place<T>()),
        pitch_(in_place_ ? matrix_.view.strides[3] : round_up(matrix_.columns, kLanes<T>)) {
    if (!in_place_) partial_ = arena.take<T>(copies * size());
  }

  T* group(std::int64_t copy, std::int64_t g) const {
    return in_place_ ? matrix_.template line<T>(g) : partial_ + copy * size() + g * matrix_.lines * pitch_;
  }
  std::int64_t pitch() const { return pitch_; }
  bool transposed() const { return matrix_.transposed; }

  /// Adds the copies and writes the result; zeros if nothing was computed.
  void finish(const Execution& execution, bool computed) const {
    if (in_place_ && computed) return;
    const std::int64_t lanes = weight_lanes(execution, copies_ * size(), matrix_.lines);
    run_lanes(execution, lanes, [&](std::int64_t lane) {
      const Range lines = part_of(matrix_.lines, lanes, lane);
      for (std::int64_t g = 0; g < matrix_.groups; ++g) {
        for (std::int64_t i = lines.begin; i < lines.end; ++i) finish_line(g, i, computed);
        if (!in_place_) store_tile<T>(group(0, g) + lines.begin * pitch_, matrix_.view, matrix_.part(g, lines));
      }
    });
  }

 private:
  std::int64_t size() const { return matrix_.groups * matrix_.lines * pitch_; }

  void finish_line(std::int64_t g, std::int64_t line, bool computed) const {
    T* sum = group(0, g) + line * pitch_;
    if (!computed) {
      std::fill(sum, sum + matrix_.columns, T(0));
      return;
    }
    for (std::int64_t copy = 1; copy < copies_; ++copy) {
      const T* partial = group(copy, g) + line * pitch_;
      for (std::int64_t i = 0; i < pitch_; i += kLanes<T>) {
        store_as<T>(hn::Add(load_as<T>(sum + i), load_as<T>(partial + i)), sum + i);
      }
    }
  }

  WeightMatrix<TensorView> matrix_;
  std::int64_t copies_;
  bool in_place_;
  std::int64_t pitch_;
  T* partial_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
