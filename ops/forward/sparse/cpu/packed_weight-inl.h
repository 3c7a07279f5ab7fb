/// The weight of a convolution that skips zeros, as forward/sparse.h lays it out.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_SPARSE_CPU_PACKED_WEIGHT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_SPARSE_CPU_PACKED_WEIGHT_INL_H_
#undef FUSEDSC_FORWARD_SPARSE_CPU_PACKED_WEIGHT_INL_H_
#else
#define FUSEDSC_FORWARD_SPARSE_CPU_PACKED_WEIGHT_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>

#include "fusedsc/common/cpu/transpose-inl.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/forward/sparse.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

template <class T>
class SparseWeightPacking {
 public:
  SparseWeightPacking(const ConstTensorView& weight, std::int64_t groups)
      : weight_(weight),
        outputs_(weight.sizes[0] / groups),
        blocks_(divide_up(outputs_, kPackedOutputs)),
        rows_(weight.sizes[1] * weight.sizes[2] * weight.sizes[3]),
        count_(groups * blocks_),
        dense_(has_dense_rows()) {}

  /// Blocks of outputs, of all groups.
  std::int64_t count() const { return count_; }

  void pack(std::int64_t block, T* packed) const {
    const std::int64_t group = block / blocks_, within = block % blocks_ * kPackedOutputs;
    const std::int64_t first = group * outputs_ + within, outputs = std::min(kPackedOutputs, outputs_ - within);
    T* to = packed + block * rows_ * kPackedOutputs;
    HWY_ALIGN T tile[kPackedOutputs * kTile];
    for (std::int64_t row = 0; row < rows_; row += kTile) {
      const std::int64_t size = std::min(kTile, rows_ - row);
      for (std::int64_t m = 0; m < outputs; ++m) read(first + m, row, size, tile + m * kTile);
      for (std::int64_t m = outputs; m < kPackedOutputs; ++m) std::fill_n(tile + m * kTile, size, T(0));
      transpose(tile, kTile, to + row * kPackedOutputs, kPackedOutputs, kPackedOutputs, size);
    }
  }

 private:
  static constexpr std::int64_t kTile = 64;

  /// Whether the values of an output lie side by side, in their order.
  bool has_dense_rows() const {
    const Sizes strides = dense_strides(weight_.sizes, Layout::contiguous);
    for (std::size_t axis = 1; axis < 4; ++axis) {
      if (weight_.sizes[axis] > 1 && weight_.strides[axis] != strides[axis]) return false;
    }
    return true;
  }

  void read(std::int64_t output, std::int64_t row, std::int64_t size, T* to) const {
    with_storage<T>(weight_.dtype, [&]<class Storage>() {
      const Storage* from = static_cast<const Storage*>(weight_.data) + output * weight_.strides[0];
      if (!dense_) return read_scattered(from, row, size, to);
      from += row;
      std::int64_t i = 0;
      for (; i + kLanes<T> <= size; i += kLanes<T>) store_as<T>(load_as<T>(from + i), to + i);
      if (i < size) store_partial<T>(load_partial<T>(from + i, size - i), to + i, size - i);
    });
  }

  template <class Storage>
  void read_scattered(const Storage* from, std::int64_t row, std::int64_t size, T* to) const {
    const Sizes& strides = weight_.strides;
    const std::int64_t width = weight_.sizes[3], taps = weight_.sizes[2] * width;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t channel = (row + i) / taps, tap = (row + i) % taps;
      const Storage* value = from + channel * strides[1] + tap / width * strides[2] + tap % width * strides[3];
      store_partial<T>(load_partial<T>(value, 1), to + i, 1);
    }
  }

  const ConstTensorView& weight_;
  std::int64_t outputs_, blocks_, rows_, count_;
  bool dense_;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
