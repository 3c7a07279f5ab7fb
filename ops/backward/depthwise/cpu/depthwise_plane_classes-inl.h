/// The input gradient of a depthwise convolution as convolutions of the output gradient: one for each class of input
/// positions that the same taps reach, which are all positions at stride 1, and every other row or column at stride 2.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_CLASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_CLASSES_INL_H_
#undef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_CLASSES_INL_H_
#else
#define FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_CLASSES_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/backward/depthwise/cpu/depthwise_gradient_rows-inl.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_plane_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Input positions that the same taps reach: rows from `row` and columns from `column`, a stride apart.
struct PositionClass {
  std::int64_t row = 0, column = 0;
  PlaneTap* taps = nullptr;
  std::int64_t tap_count = 0;
};

/// Which gradient rows and columns a chunk of input rows pulls from. Chunks begin at multiples of the vertical stride:
/// then the taps' offsets are the same in all of them.
struct PullGeometry {
  Window window;
  std::int64_t width = 0;      ///< of the input
  std::int64_t first_row = 0;  ///< the gradient row that input row 0 may pull from first
  std::int64_t left = 0;       ///< columns of zeros before the gradient's
  std::int64_t reach = 0;      ///< padded gradient columns that vectors may begin in

  PullGeometry(const Window& window_, std::int64_t width_, std::int64_t lanes) : window(window_), width(width_) {
    const std::int64_t stride = window.stride[1];
    first_row = floor_divide(window.padding.top - (window.kernel[0] - 1) * window.dilation[0], window.stride[0]);
    left = std::max<std::int64_t>(
        0, -floor_divide(window.padding.left - (window.kernel[1] - 1) * window.dilation[1], stride));
    reach = left + (stride - 1 + window.padding.left) / stride + round_up((width + stride - 1) / stride, lanes);
  }

  std::int64_t classes() const { return window.stride[0] * window.stride[1]; }
  std::int64_t tap_count() const { return window.kernel[0] * window.kernel[1]; }
  std::int64_t class_columns(std::int64_t column) const {
    return (width - column + window.stride[1] - 1) / window.stride[1];
  }
  std::int64_t class_rows(std::int64_t rows, std::int64_t row) const {
    return (rows - row + window.stride[0] - 1) / window.stride[0];
  }

  /// The gradient rows of a chunk.
  Range gradient_rows(const Range& rows) const {
    const std::int64_t first = rows.begin / window.stride[0] + first_row;
    return {first, (rows.end - 1 + window.padding.top) / window.stride[0] + 1};
  }

  /// All classes, and their taps' offsets from a chunk's first gradient row in rows of `pitch`.
  void list(std::int64_t pitch, PositionClass* classes, PlaneTap* taps) const {
    for (std::int64_t row = 0; row < window.stride[0]; ++row) {
      for (std::int64_t column = 0; column < window.stride[1]; ++column, ++classes) {
        *classes = {row, column, taps, 0};
        for (std::int64_t tap = 0; tap < tap_count(); ++tap) {
          const std::int64_t down = row + window.padding.top - tap / window.kernel[1] * window.dilation[0];
          const std::int64_t right = column + window.padding.left - tap % window.kernel[1] * window.dilation[1];
          if (down % window.stride[0] != 0 || right % window.stride[1] != 0) continue;
          const std::int64_t at = (down / window.stride[0] - first_row) * pitch + left + right / window.stride[1];
          *taps++ = {tap, at};
          ++classes->tap_count;
        }
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
