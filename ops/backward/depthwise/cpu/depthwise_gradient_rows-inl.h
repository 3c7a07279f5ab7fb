/// Turns rows of a depthwise convolution's output gradient into rows of its input gradient and into its weight
/// gradient, one image after the other. Where the output gradient comes from is the caller's: a tensor, or the fused
/// block.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_ROWS_INL_H_
#undef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_ROWS_INL_H_
#else
#define FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_GRADIENT_ROWS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/backward/depthwise/cpu/depthwise_backward_kernel-inl.h"
#include "fusedsc/forward/depthwise/cpu/depthwise_plan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

inline std::int64_t floor_divide(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// Which output gradients an input row needs, for any window.
struct GradientGeometry {
  Window window;
  std::int64_t output_rows = 0, output_columns = 0, input_columns = 0;
  std::int64_t ring_left = 0;     ///< columns of zeros that a padded gradient row begins with
  std::int64_t ring_columns = 0;  ///< its length
  std::int64_t reach = 0;         ///< output rows whose windows can cover one input row

  GradientGeometry(const Window& window_, const Sizes& x, const Sizes& y)
      : window(window_), output_rows(y[2]), output_columns(y[3]), input_columns(x[3]) {
    const std::int64_t span = (window.kernel[1] - 1) * window.dilation[1];
    ring_left = std::max<std::int64_t>(0, -floor_divide(window.padding.left - span, window.stride[1]));
    const std::int64_t last = (input_columns - 1 + window.padding.left) / window.stride[1];
    ring_columns = ring_left + std::max(output_columns, last + 1);
    reach = (window.kernel[0] - 1) * window.dilation[0] / window.stride[0] + 1;
  }

  /// The output row that input row `row` pulls from by tap row `kh`, or -1 if there is none.
  std::int64_t output_row(std::int64_t row, std::int64_t kh) const {
    const std::int64_t distance = row + window.padding.top - kh * window.dilation[0];
    if (distance < 0 || distance % window.stride[0] != 0) return -1;
    const std::int64_t output = distance / window.stride[0];
    return output < output_rows ? output : -1;
  }
};

/// The most input rows that a call of GradientRowKernel takes: a few rows share the loads of the weights.
inline constexpr std::int64_t kMostGradientRows = 8;
inline std::int64_t most_gradient_rows(const Window& window) {
  return is_three_by_three(window) && window.stride[0] == 1 ? kMostGradientRows : 1;
}

/// What one call of GradientRowKernel works on: `count` input rows from `row`. Input and gradient rows as in
/// GradientRows; null where not wanted.
template <class T>
struct InputRows {
  std::int64_t row = 0, count = 0;
  const T* const* input = nullptr;
  std::int64_t input_pitch = 0;
  T* const* grad_input = nullptr;
  std::int64_t grad_input_pitch = 0;
  std::int64_t input_ahead = 0, grad_input_ahead = 0;  ///< as in GradientRows
  bool streams = false;                                ///< likewise; for 3x3 windows
};

/// Chooses the kernel for a window. `grad_row(o)` gives the padded row of output gradients o, zeros outside the output.
template <class T>
class GradientRowKernel {
 public:
  /// `rows`: worth passing to one call, no more than most_gradient_rows().
  GradientRowKernel(const GradientGeometry& geometry, std::int64_t rows, Arena& arena)
      : geometry_(geometry), rows_at_once_(rows), three_by_three_(is_three_by_three(geometry.window)) {
    if (three_by_three_) return;
    taps_ = arena.take<Tap<T>>(geometry.window.kernel[0] * geometry.window.kernel[1]);
  }

  std::int64_t rows_at_once() const { return rows_at_once_; }
  /// Gradient rows that such a call has in use.
  std::int64_t ring_rows() const { return geometry_.reach + rows_at_once(); }
  /// Whether the inputs must come with the convolution's padding, as rows of padded_columns() from column
  /// -padding.left.
  bool wants_padded_input() const { return !three_by_three_; }
  std::int64_t padded_columns() const {
    return (geometry_.output_columns - 1) * geometry_.window.stride[1] +
           (geometry_.window.kernel[1] - 1) * geometry_.window.dilation[1] + 1;
  }

  template <class GradRow>
  void run(const InputRows<T>& rows, const GradRow& grad_row, const DepthwiseWeights<T>& weights, T* grad_weight,
           std::int64_t channels) {
    const DepthwiseWeights<T> no_bias{weights.taps, weights.pitch, nullptr};
    if (!three_by_three_) return run_taps(rows, grad_row, no_bias, grad_weight, channels);
    if (rows.grad_input == nullptr) run_three<false, true>(rows, grad_row, no_bias, grad_weight, channels);
    else if (rows.input == nullptr) run_three<true, false>(rows, grad_row, no_bias, grad_weight, channels);
    else run_three<true, true>(rows, grad_row, no_bias, grad_weight, channels);
  }

 private:
  template <bool kInput, bool kWeight, class GradRow>
  void run_three(const InputRows<T>& rows, const GradRow& grad_row, const DepthwiseWeights<T>& weights, T* grad_weight,
                 std::int64_t channels) {
    const std::int64_t distance = rows.row + geometry_.window.padding.top;
    const std::int64_t left = geometry_.window.padding.left;
    const T* grad[kMostGradientRows + 2];
    const GradientRows<T> gradient{grad,
                                   channels,
                                   rows.input,
                                   rows.input_pitch,
                                   rows.grad_input,
                                   rows.grad_input_pitch,
                                   geometry_.input_columns,
                                   rows.input_ahead,
                                   rows.grad_input_ahead,
                                   rows.streams};
    if (geometry_.window.stride[0] == 1) {
      for (std::int64_t i = 0; i < rows.count + 2; ++i) {
        grad[i] = grad_row(distance - 2 + i) + (geometry_.ring_left + left) * channels;
      }
      return depthwise_3x3_backward<T, kInput, kWeight>(gradient, rows.count, weights, grad_weight, channels);
    }
    grad[0] = grad_row(distance / 2) + geometry_.ring_left * channels;
    if (distance % 2 == 0) {
      grad[1] = grad_row(distance / 2 - 1) + geometry_.ring_left * channels;
      depthwise_3x3_backward_stride2<T, true, kInput, kWeight>(gradient, left, weights, grad_weight, channels);
    } else {
      depthwise_3x3_backward_stride2<T, false, kInput, kWeight>(gradient, left, weights, grad_weight, channels);
    }
  }

  template <class GradRow>
  void run_taps(const InputRows<T>& rows, const GradRow& grad_row, const DepthwiseWeights<T>& weights, T* grad_weight,
                std::int64_t channels) {
    for (std::int64_t r = 0; r < rows.count; ++r) {
      if (rows.grad_input != nullptr) {
        pull_row(rows.row + r, grad_row, weights, channels, rows.grad_input[r], rows.grad_input_pitch);
      }
      if (rows.input != nullptr) weigh_row(rows.row + r, grad_row, rows.input[r], grad_weight, weights.pitch, channels);
    }
  }

  /// Columns at the same distance modulo the stride are reached by the same taps: each class is a convolution of its
  /// own.
  template <class GradRow>
  void pull_row(std::int64_t row, const GradRow& grad_row, const DepthwiseWeights<T>& weights, std::int64_t channels,
                T* grad_input, std::int64_t grad_input_pitch) {
    const Window& window = geometry_.window;
    const std::int64_t stride = window.stride[1];
    for (std::int64_t first = 0; first < std::min(stride, geometry_.input_columns); ++first) {
      std::int64_t tap_count = 0;
      for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
        const std::int64_t output = geometry_.output_row(row, kh);
        if (output < 0) continue;
        const T* grad = grad_row(output) + geometry_.ring_left * channels;
        for (std::int64_t kw = 0; kw < window.kernel[1]; ++kw) {
          const std::int64_t distance = first + window.padding.left - kw * window.dilation[1];
          if (distance % stride != 0) continue;
          taps_[tap_count++] = {kh * window.kernel[1] + kw, grad + distance / stride * channels};
        }
      }
      const std::int64_t columns = (geometry_.input_columns - first + stride - 1) / stride;
      depthwise_taps_row<T>(taps_, tap_count, channels, weights, channels, grad_input + first * grad_input_pitch,
                            stride * grad_input_pitch, columns);
    }
  }

  template <class GradRow>
  void weigh_row(std::int64_t row, const GradRow& grad_row, const T* input, T* grad_weight, std::int64_t weight_pitch,
                 std::int64_t channels) {
    const Window& window = geometry_.window;
    const std::int64_t input_step = window.stride[1] * channels, tap_step = window.dilation[1] * channels;
    for (std::int64_t kh = 0; kh < window.kernel[0]; ++kh) {
      const std::int64_t output = geometry_.output_row(row, kh);
      if (output < 0) continue;
      const T* grad = grad_row(output) + geometry_.ring_left * channels;
      for (std::int64_t kw = 0; kw < window.kernel[1];) {
        const std::int64_t left = window.kernel[1] - kw;
        T* to = grad_weight + (kh * window.kernel[1] + kw) * weight_pitch;
        const auto weigh = [&]<int kTaps>() HWY_ATTR {
          depthwise_taps_weight<T, kTaps>(grad, channels, geometry_.output_columns, input + kw * tap_step, input_step,
                                          tap_step, to, weight_pitch, channels);
          kw += kTaps;
        };
        if (left >= 4) weigh.template operator()<4>();
        else if (left >= 2) weigh.template operator()<2>();
        else weigh.template operator()<1>();
      }
    }
  }

  const GradientGeometry& geometry_;
  std::int64_t rows_at_once_;
  bool three_by_three_;
  Tap<T>* taps_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
