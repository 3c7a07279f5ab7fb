/// Single outputs of depthwise convolutions in plain arithmetic, for kernels whose products on tensor cores multiply an
/// element by zeros, too: an infinity or a NaN makes NaNs of outputs that do not see it. Those are computed again here,
/// two neighbouring channels at a time, straight from x. There may be as many of them as there are outputs (a step
/// whose loss overflowed), so what one NaN of the window already decides is not computed.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/tensors/tensor.h"

namespace fusedsc::gpu {

inline constexpr float kLargestFloat = std::numeric_limits<float>::max();

FUSEDSC_DEVICE bool is_finite(float value) { return fabsf(value) <= kLargestFloat; }
FUSEDSC_DEVICE bool is_nan(float value) { return value != value; }

/// The window of an output. Taps: input_row(kh), input_column(kw) say which element of x a tap sees, inside of the
/// image or not.
template <class T, int kKernel, class Taps>
class DepthwiseWindowSum {
 public:
  FUSEDSC_DEVICE DepthwiseWindowSum(const ConstDeviceTensor& x, const ConstDeviceTensor& weight, int image, int height,
                                    int width, const Taps& taps)
      : x_(x), weight_(weight), image_(image), height_(height), width_(width), taps_(taps) {}

  /// Some element that the window sees, of kCount neighbouring channels; zeros if it sees none.
  template <int kCount>
  FUSEDSC_DEVICE Vector<T, kCount> read_one(int channel) const {
    int row = -1, column = -1;
#pragma unroll
    for (int k = 0; k < kKernel; ++k) {
      const int h = taps_.input_row(k), w = taps_.input_column(k);
      if (is_inside(h, height_)) row = h;
      if (is_inside(w, width_)) column = w;
    }
    if (row < 0 || column < 0) return {};
    return load<kCount>(elements_of<T>(x_) + x_.offset(image_, channel, row, column));
  }

  /// Adds the window of `channel` and the next one. change(values): what is done to elements as they are read.
  template <int kTogether, class Change>
  FUSEDSC_DEVICE void add_to(float (&sums)[2], int channel, const Change& change) const {
#pragma unroll 1
    for (int kh = 0; kh < kKernel; ++kh) {
      const int h = taps_.input_row(kh);
      if (!is_inside(h, height_)) continue;
      // Worked out anew for each row: registers are what the kernels around this have none of.
      const T* const row = elements_of<T>(x_) + x_.offset(image_, channel, h, 0);
      const T* const taps = elements_of<T>(weight_) + weight_.offset(channel, 0, kh, 0);
      // What kTogether taps read is on its way before the first of it is used.
#pragma unroll 1
      for (int first = 0; first < kKernel; first += kTogether) {
        Vector<T, 2> seen[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int w = taps_.input_column(first + i);
          seen[i] = is_seen(first + i, w) ? load<2>(row + w * x_.column) : Vector<T, 2>{};
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (!is_seen(first + i, taps_.input_column(first + i))) continue;  // not even a weight that is infinite
          const T* const tap = taps + (first + i) * weight_.column;
          float values[2];
          seen[i].widen(values);
          change(values);
          sums[0] += values[0] * to_accumulator(tap[0]);
          sums[1] += values[1] * to_accumulator(tap[weight_.image]);
        }
      }
      if (is_nan(sums[0]) && is_nan(sums[1])) return;  // whatever follows
    }
  }

 private:
  FUSEDSC_DEVICE bool is_seen(int kw, int column) const { return kw < kKernel && is_inside(column, width_); }
  FUSEDSC_DEVICE static bool is_inside(int place, int size) {
    return static_cast<unsigned>(place) < static_cast<unsigned>(size);
  }

  const ConstDeviceTensor &x_, &weight_;
  int image_, height_, width_;
  Taps taps_;
};

/// Of a window that moves by `kStride`.
template <int kStride>
struct DepthwiseTaps {
  int first_row, first_column;

  FUSEDSC_DEVICE DepthwiseTaps(int row, int column, int padding_top, int padding_left)
      : first_row(row * kStride - padding_top), first_column(column * kStride - padding_left) {}

  FUSEDSC_DEVICE int input_row(int kh) const { return first_row + kh; }
  FUSEDSC_DEVICE int input_column(int kw) const { return first_column + kw; }
};

/// Whether an output that was computed beside others is one that must be computed again: it is a NaN, which is what
/// zeros make of an infinity, too, and the element `seen` of its window is none, which would be reason enough.
FUSEDSC_DEVICE bool is_in_doubt(float output, float seen) { return is_nan(output) && !is_nan(seen); }

}  // namespace fusedsc::gpu
