/// Depthwise gradients on tiles, input-centric: one visit to an input position computes its input gradient and adds its
/// share of the weight gradient, so that each loaded output gradient serves both. The weights of a channel vector and
/// their gradients stay in registers over a row.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_KERNEL_INL_H_
#undef FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_KERNEL_INL_H_
#else
#define FUSEDSC_BACKWARD_DEPTHWISE_CPU_DEPTHWISE_BACKWARD_KERNEL_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/forward/depthwise/cpu/depthwise_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Rows of input positions and what belongs to them. Pitches are elements between neighbouring columns.
template <class T>
struct GradientRows {
  const T* const* grad;  ///< output gradient rows, see the kernels for which; column 0 is that of the window's origin
  std::int64_t grad_pitch;
  const T* const* input;  ///< the inputs as the convolution saw them (after the prologue); unused without kWeight
  std::int64_t input_pitch;
  T* const* grad_input;  ///< written; unused without kInput
  std::int64_t grad_input_pitch;
  std::int64_t columns;
  /// How far on the rows of the next call lie, to be fetched while these are computed; 0: nothing to fetch.
  std::int64_t input_ahead = 0, grad_input_ahead = 0;
  bool streams = false;  ///< vectors of grad_input are whole cache lines, to be stored around the caches
};

/// Fetches what the next call reads and writes, column by column, once per cache line of channels.
template <class T, bool kInput, bool kWeight>
struct ColumnPrefetch {
  std::int64_t input_ahead = 0, grad_input_ahead = 0;

  HWY_INLINE ColumnPrefetch(const GradientRows<T>& rows, std::int64_t channel) {
    if (channel * static_cast<std::int64_t>(sizeof(T)) % kCacheLine != 0) return;
    input_ahead = rows.input_ahead;
    grad_input_ahead = rows.grad_input_ahead;
  }

  HWY_INLINE void operator()(const T* input, const T* grad_input) const {
    if (kWeight && input_ahead != 0) prefetch(input + input_ahead, kCacheLine);
    if (kInput && grad_input_ahead != 0) prefetch(grad_input + grad_input_ahead, kCacheLine);
  }
};

/// 3x3, stride 1. Input row r pulls from grad[r + 2 - kh], column j from columns j - kw.
template <class T, bool kInput, bool kWeight>
HWY_NOINLINE void depthwise_3x3_backward(const GradientRows<T>& rows, std::int64_t row_count,
                                         const DepthwiseWeights<T>& weights, T* grad_weight, std::int64_t channels) {
  const Tag<T> d;
  const bool streams = rows.streams;
  for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
    // Nine weights beside nine sums do not fit sixteen registers: there each weight is read where it is used, from
    // this copy, which the compiler must not see through, or it would keep the sums on the stack instead.
    HWY_ALIGN T copy[9 * kLanes<T>];
    Vec<T> weight[9], sum[9];
    HWY_UNROLL(9)
    for (int tap = 0; tap < 9; ++tap) {
      weight[tap] = load_as<T>(weights.taps + tap * weights.pitch + c);
      store_as<T>(weight[tap], copy + tap * kLanes<T>);
      sum[tap] = kWeight ? load_as<T>(grad_weight + tap * weights.pitch + c) : hn::Zero(d);
    }
    const ColumnPrefetch<T, kInput, kWeight> prefetch_column(rows, c);
    for (std::int64_t r = 0; r < row_count; ++r) {
      const T* grad[3] = {rows.grad[r + 2] + c, rows.grad[r + 1] + c, rows.grad[r] + c};
      const T* input = kWeight ? rows.input[r] + c : nullptr;
      T* grad_input = kInput ? rows.grad_input[r] + c : nullptr;
      for (std::int64_t j = 0; j < rows.columns; ++j) {
        prefetch_column(input + j * rows.input_pitch, grad_input + j * rows.grad_input_pitch);
        const auto value = kWeight ? load_as<T>(input + j * rows.input_pitch) : hn::Zero(d);
        const T* taps = copy;
        if constexpr (!kManyRegisters) asm("" : "+r"(taps) : : "memory");
        Vec<T> pulled[3];
        HWY_UNROLL(3)
        for (int kh = 0; kh < 3; ++kh) {
          pulled[kh] = hn::Zero(d);
          HWY_UNROLL(3)
          for (int kw = 0; kw < 3; ++kw) {
            const auto g = load_as<T>(grad[kh] + (j - kw) * rows.grad_pitch);
            const int tap = kh * 3 + kw;
            const auto w = kManyRegisters ? weight[tap] : load_as<T>(taps + tap * kLanes<T>);
            if constexpr (kInput) pulled[kh] = hn::MulAdd(g, w, pulled[kh]);
            if constexpr (kWeight) sum[kh * 3 + kw] = hn::MulAdd(g, value, sum[kh * 3 + kw]);
          }
        }
        if constexpr (kInput) {
          store_line<T>(hn::Add(hn::Add(pulled[0], pulled[1]), pulled[2]), grad_input + j * rows.grad_input_pitch,
                        streams);
        }
      }
    }
    if constexpr (kWeight) {
      HWY_UNROLL(9)
      for (int tap = 0; tap < 9; ++tap) store_as<T>(sum[tap], grad_weight + tap * weights.pitch + c);
    }
  }
}

/// 3x3, stride 2, one input row. Rows at an even distance from the window's origin (kEvenRow) pull from grad[0] by kh =
/// 0 and from grad[1], the row above it, by kh = 2; odd ones from grad[0] by kh = 1. Columns likewise: an even distance
/// 2s pulls from column s by kw = 0 and s - 1 by kw = 2, an odd 2s + 1 from column s by kw = 1. The row's first column
/// is at distance `left`.
template <class T, bool kEvenRow, bool kInput, bool kWeight>
HWY_NOINLINE void depthwise_3x3_backward_stride2(const GradientRows<T>& rows, std::int64_t left,
                                                 const DepthwiseWeights<T>& weights, T* grad_weight,
                                                 std::int64_t channels) {
  constexpr int kPulled = kEvenRow ? 2 : 1;
  constexpr int kTapRow[2] = {kEvenRow ? 0 : 3, 6};
  const Tag<T> d;
  const bool streams = rows.streams;
  for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
    Vec<T> weight[2][3], sum[2][3];
    HWY_UNROLL(2)
    for (int i = 0; i < kPulled; ++i) {
      HWY_UNROLL(3)
      for (int kw = 0; kw < 3; ++kw) {
        weight[i][kw] = load_as<T>(weights.taps + (kTapRow[i] + kw) * weights.pitch + c);
        sum[i][kw] = kWeight ? load_as<T>(grad_weight + (kTapRow[i] + kw) * weights.pitch + c) : hn::Zero(d);
      }
    }
    const T* input = kWeight ? rows.input[0] + c : nullptr;
    T* grad_input = kInput ? rows.grad_input[0] + c : nullptr;
    const T* grad[2] = {rows.grad[0] + c, kEvenRow ? rows.grad[1] + c : nullptr};
    const ColumnPrefetch<T, kInput, kWeight> prefetch_column(rows, c);

    const auto even_column = [&](std::int64_t j, const Vec<T>* here, const Vec<T>* before) HWY_ATTR {
      prefetch_column(input + j * rows.input_pitch, grad_input + j * rows.grad_input_pitch);
      auto pulled = hn::Zero(d);
      const auto value = kWeight ? load_as<T>(input + j * rows.input_pitch) : pulled;
      HWY_UNROLL(2)
      for (int i = 0; i < kPulled; ++i) {
        pulled = hn::MulAdd(here[i], weight[i][0], hn::MulAdd(before[i], weight[i][2], pulled));
        if constexpr (kWeight) {
          sum[i][0] = hn::MulAdd(here[i], value, sum[i][0]);
          sum[i][2] = hn::MulAdd(before[i], value, sum[i][2]);
        }
      }
      if constexpr (kInput) store_line<T>(pulled, grad_input + j * rows.grad_input_pitch, streams);
    };
    const auto odd_column = [&](std::int64_t j, const Vec<T>* here) HWY_ATTR {
      prefetch_column(input + j * rows.input_pitch, grad_input + j * rows.grad_input_pitch);
      auto pulled = hn::Zero(d);
      const auto value = kWeight ? load_as<T>(input + j * rows.input_pitch) : pulled;
      HWY_UNROLL(2)
      for (int i = 0; i < kPulled; ++i) {
        pulled = hn::MulAdd(here[i], weight[i][1], pulled);
        if constexpr (kWeight) sum[i][1] = hn::MulAdd(here[i], value, sum[i][1]);
      }
      if constexpr (kInput) store_line<T>(pulled, grad_input + j * rows.grad_input_pitch, streams);
    };

    Vec<T> here[2], before[2];
    const auto load_column = [&](std::int64_t s, Vec<T>* to) HWY_ATTR {
      HWY_UNROLL(2)
      for (int i = 0; i < kPulled; ++i) to[i] = load_as<T>(grad[i] + s * rows.grad_pitch);
    };
    std::int64_t j = 0, s = left / 2;
    load_column(left % 2 == 0 ? s - 1 : s, before);
    if (left % 2 != 0) {  // start with the odd half of a pair
      odd_column(j++, before);
      ++s;
    }
    for (; j + 1 < rows.columns; j += 2, ++s) {
      load_column(s, here);
      even_column(j, here, before);
      odd_column(j + 1, here);
      HWY_UNROLL(2)
      for (int i = 0; i < kPulled; ++i) before[i] = here[i];
    }
    if (j < rows.columns) {
      load_column(s, here);
      even_column(j, here, before);
    }
    if constexpr (kWeight) {
      HWY_UNROLL(2)
      for (int i = 0; i < kPulled; ++i) {
        HWY_UNROLL(3)
        for (int kw = 0; kw < 3; ++kw) {
          store_as<T>(sum[i][kw], grad_weight + (kTapRow[i] + kw) * weights.pitch + c);
        }
      }
    }
  }
}

/// kTaps neighbouring taps of one row of a window of any shape: grad_weight[tap] += sum over the output columns q of
/// grad[q] * input[q * stride + tap * dilation].
template <class T, int kTaps>
void depthwise_taps_weight(const T* grad, std::int64_t grad_pitch, std::int64_t columns, const T* input,
                           std::int64_t input_step, std::int64_t tap_step, T* grad_weight, std::int64_t weight_pitch,
                           std::int64_t channels) {
  for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
    Vec<T> sum[kTaps];
    HWY_UNROLL(4)
    for (int tap = 0; tap < kTaps; ++tap) sum[tap] = load_as<T>(grad_weight + tap * weight_pitch + c);
    for (std::int64_t q = 0; q < columns; ++q) {
      const auto g = load_as<T>(grad + q * grad_pitch + c);
      HWY_UNROLL(4)
      for (int tap = 0; tap < kTaps; ++tap) {
        sum[tap] = hn::MulAdd(g, load_as<T>(input + q * input_step + tap * tap_step + c), sum[tap]);
      }
    }
    HWY_UNROLL(4)
    for (int tap = 0; tap < kTaps; ++tap) store_as<T>(sum[tap], grad_weight + tap * weight_pitch + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
