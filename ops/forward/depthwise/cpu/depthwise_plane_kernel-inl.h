/// Depthwise kernels on planes: vectors run along rows, a channel's weights are broadcast, and blocks of rows share
/// what they load. The same kernels serve forward and the input gradient, and all strides: what differs is where taps
/// read.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_KERNEL_INL_H_
#undef FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_KERNEL_INL_H_
#else
#define FUSEDSC_FORWARD_DEPTHWISE_CPU_DEPTHWISE_PLANE_KERNEL_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/forward/depthwise/cpu/plane-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Rows that a kernel reads or writes: `columns` elements every `pitch`.
template <class T>
struct PlaneRows {
  T* data = nullptr;
  std::int64_t pitch = 0, rows = 0, columns = 0;

  /// Where whole vectors that begin in a row must end: nowhere where they would reach into what is not theirs.
  HWY_INLINE const T* vectors_end() const {
    return columns >= kLanes<std::remove_const_t<T>> || pitch == columns ? data + (rows - 1) * pitch + columns : data;
  }
};

/// A tap: its weight (an index), and how far from the block's place it reads.
struct PlaneTap {
  std::int64_t weight = 0, offset = 0;
};

/// The place of the vector after the one at `j`, in a row of `columns`: where the row is long enough the last one
/// overlaps the one before, so that all are whole. `columns` when there is none left.
template <class T>
HWY_INLINE std::int64_t next_column(std::int64_t j, std::int64_t columns) {
  return j + kLanes<T> >= columns ? columns : std::min(j + kLanes<T>, columns - kLanes<T>);
}

/// Stores a column of vectors, whole ones before `end`. Neighbouring rows shorter than a vector are stored in order, so
/// that each covers what the one before wrote too much.
template <class T, int kRows>
HWY_INLINE void store_column(const Vec<T> (&sum)[kRows], T* to, std::int64_t pitch, std::int64_t columns,
                             const T* end) {
  if (HWY_LIKELY(to + (kRows - 1) * pitch + kLanes<T> <= end)) {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) store_as<T>(sum[r], to + r * pitch);
    return;
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r, to += pitch) {
    if (to + kLanes<T> <= end) store_as<T>(sum[r], to);
    else store_partial<T>(sum[r], to, columns);
  }
}

/// Rows that kernels compute together, the most first.
inline constexpr int kPlaneRows[] = {kManyRegisters ? 7 : 4, kManyRegisters ? 4 : 3, 2, 1};

/// body.template operator()<kRows>(row) for blocks of rows that cover `rows`.
template <class Body>
HWY_INLINE void for_each_block(std::int64_t rows, const Body& body) {
  std::int64_t row = 0;
  for (; row + kPlaneRows[0] <= rows; row += kPlaneRows[0]) body.template operator()<kPlaneRows[0]>(row);
  for (; row + kPlaneRows[1] <= rows; row += kPlaneRows[1]) body.template operator()<kPlaneRows[1]>(row);
  for (; row + kPlaneRows[2] <= rows; row += kPlaneRows[2]) body.template operator()<kPlaneRows[2]>(row);
  for (; row < rows; ++row) body.template operator()<1>(row);
}

/// Where the taps of a 3x3 window read: rows `pitch` apart; columns next to each other, or, at stride 2, every other
/// one `odd` further on.
template <class T, int kStride>
struct Source3x3 {
  const T* data;
  std::int64_t pitch, odd;

  HWY_INLINE Vec<T> load(std::int64_t row, std::int64_t column, int kw) const {
    const T* at = data + row * pitch + column;
    if constexpr (kStride == 1) return load_as<T>(at + kw);
    return load_as<T>(kw == 1 ? at + odd : at + kw / 2);
  }
};

/// The first `left` elements of even[0], odd[0], even[1]...
template <class T>
HWY_INLINE void store_in_turn(Vec<T> even, Vec<T> odd, T* to, std::int64_t left) {
  const Tag<T> d;
  if (left >= 2 * kLanes<T>) return hn::StoreInterleaved2(even, odd, d, to);
  T both[2 * kLanes<T>];
  hn::StoreInterleaved2(even, odd, d, both);
  std::memcpy(to, both, static_cast<std::size_t>(left) * sizeof(T));
}

/// Blocks of kRows rows of a 3x3 convolution, from `row` on; returns the row after them.
template <class T, int kStride, int kRows, class Prefetching>
HWY_INLINE std::int64_t convolve_3x3_rows(Source3x3<T, kStride> source, const Vec<T> (&weight)[9], Vec<T> bias,
                                          PlaneRows<T> to, std::int64_t row, Prefetching& prefetcher) {
  const T* const end = to.vectors_end();
  typename Prefetching::Walk walk(prefetcher);
  for (; row + kRows <= to.rows; row += kRows) {
    for (std::int64_t j = 0; j < to.columns; j = next_column<T>(j, to.columns)) {
      Vec<T> sum[kRows];
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) sum[r] = bias;
      HWY_UNROLL(16)
      for (int i = 0; i < (kRows - 1) * kStride + 3; ++i) {
        walk.step();
        HWY_UNROLL(3)
        for (int kw = 0; kw < 3; ++kw) {
          const auto value = source.load(row * kStride + i, j, kw);
          HWY_UNROLL(8)
          for (int r = 0; r < kRows; ++r) {
            const int kh = i - r * kStride;
            if (kh >= 0 && kh <= 2) sum[r] = hn::MulAdd(value, weight[kh * 3 + kw], sum[r]);
          }
        }
      }
      store_column<T, kRows>(sum, to.data + row * to.pitch + j, to.pitch, to.columns, end);
    }
  }
  return row;
}

/// to = a 3x3 convolution without dilation.
template <class T, int kStride, class Prefetching>
HWY_NOINLINE void convolve_3x3(Source3x3<T, kStride> source, const T* weights, T bias, PlaneRows<T> to,
                               Prefetching& prefetcher) {
  const Tag<T> d;
  Vec<T> weight[9];
  HWY_UNROLL(9)
  for (int tap = 0; tap < 9; ++tap) weight[tap] = hn::Set(d, weights[tap]);
  const auto start = hn::Set(d, bias);
  std::int64_t row = convolve_3x3_rows<T, kStride, kPlaneRows[0]>(source, weight, start, to, 0, prefetcher);
  row = convolve_3x3_rows<T, kStride, kPlaneRows[1]>(source, weight, start, to, row, prefetcher);
  row = convolve_3x3_rows<T, kStride, kPlaneRows[2]>(source, weight, start, to, row, prefetcher);
  convolve_3x3_rows<T, kStride, kPlaneRows[3]>(source, weight, start, to, row, prefetcher);
}

/// The taps of a list, and where they begin to read: `row_step` further on for each next row.
template <class T>
struct TapSource {
  const T* data;
  std::int64_t row_step;
  const PlaneTap* taps;
  std::int64_t tap_count;
};

/// kRows outputs, one below the other: sums of the taps, beginning with `start`.
template <class T, int kRows>
HWY_INLINE void sum_taps(const TapSource<T>& source, const T* weights, T start, std::int64_t row, std::int64_t j,
                         Vec<T> (&sum)[kRows]) {
  const Tag<T> d;
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) sum[r] = hn::Set(d, start);
  const T* const from = source.data + row * source.row_step + j;
  for (std::int64_t i = 0; i < source.tap_count; ++i) {
    const auto weight = hn::Set(d, weights[source.taps[i].weight]);
    const T* at = from + source.taps[i].offset;
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) sum[r] = hn::MulAdd(load_as<T>(at + r * source.row_step), weight, sum[r]);
  }
}

/// to = any convolution.
template <class T>
HWY_NOINLINE void convolve_taps(const TapSource<T>& source, const T* weights, T bias, const PlaneRows<T>& to) {
  const T* const end = to.vectors_end();
  for_each_block(to.rows, [&]<int kRows>(std::int64_t row) HWY_ATTR {
    for (std::int64_t j = 0; j < to.columns; j = next_column<T>(j, to.columns)) {
      Vec<T> sum[kRows];
      sum_taps<T, kRows>(source, weights, bias, row, j, sum);
      store_column<T, kRows>(sum, to.data + row * to.pitch + j, to.pitch, to.columns, end);
    }
  });
}

/// Two convolutions: the even columns of `to` are sums of one list of taps, the odd ones of the other.
template <class T>
HWY_NOINLINE void convolve_taps_in_turn(const TapSource<T>& even, const TapSource<T>& odd, const T* weights,
                                        const PlaneRows<T>& to) {
  for_each_block(to.rows, [&]<int kRows>(std::int64_t row) HWY_ATTR {
    for (std::int64_t j = 0; 2 * j < to.columns; j += kLanes<T>) {
      Vec<T> sum[kRows], sum_odd[kRows];
      sum_taps<T, kRows>(even, weights, T(0), row, j, sum);
      sum_taps<T, kRows>(odd, weights, T(0), row, j, sum_odd);
      const std::int64_t left = to.columns - 2 * j;
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r)
        store_in_turn<T>(sum[r], sum_odd[r], to.data + (row + r) * to.pitch + 2 * j, left);
    }
  });
}

template <class T>
HWY_INLINE void add_to(Vec<T> sum, T* total) {
  store_as<T>(hn::Add(load_as<T>(total), sum), total);
}

/// Blocks of kRows rows of correlate_3x3, from `row` on; returns the row after them.
template <class T, int kRows, class Prefetching>
HWY_INLINE std::int64_t correlate_3x3_rows(PlaneRows<const T> rows, const T* source, std::int64_t pitch,
                                           std::int64_t row, Vec<T> (&sum)[9], Prefetching& prefetcher) {
  typename Prefetching::Walk walk(prefetcher);
  for (; row + kRows <= rows.rows; row += kRows) {
    for (std::int64_t j = 0; j < rows.columns; j += kLanes<T>) {
      Vec<T> value[kRows];
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        value[r] = ChannelMajor<T>::load(rows.data + (row + r) * rows.pitch + j, rows.columns - j);
      }
      HWY_UNROLL(8)
      for (int i = 0; i < kRows + 2; ++i) {
        walk.step();
        HWY_UNROLL(3)
        for (int kw = 0; kw < 3; ++kw) {
          const auto g = load_as<T>(source + (row + i) * pitch + j + kw);
          HWY_UNROLL(4)
          for (int r = 0; r < kRows; ++r) {
            const int kh = i - r;
            if (kh >= 0 && kh <= 2) sum[kh * 3 + kw] = hn::MulAdd(g, value[r], sum[kh * 3 + kw]);
          }
        }
      }
    }
  }
  return row;
}

/// sums[tap] += the rows times the 3x3 taps of `source`, element by element: the gradient of a 3x3 weight, whose lanes
/// are yet to be added up.
template <class T, class Prefetching>
HWY_NOINLINE void correlate_3x3(PlaneRows<const T> rows, const T* source, std::int64_t pitch, T* sums,
                                Prefetching& prefetcher) {
  Vec<T> sum[9];
  HWY_UNROLL(9)
  for (int tap = 0; tap < 9; ++tap) sum[tap] = hn::Zero(Tag<T>());
  std::int64_t row = correlate_3x3_rows<T, 4>(rows, source, pitch, 0, sum, prefetcher);
  row = correlate_3x3_rows<T, 3>(rows, source, pitch, row, sum, prefetcher);
  row = correlate_3x3_rows<T, 2>(rows, source, pitch, row, sum, prefetcher);
  correlate_3x3_rows<T, 1>(rows, source, pitch, row, sum, prefetcher);
  HWY_UNROLL(9)
  for (int tap = 0; tap < 9; ++tap) add_to<T>(sum[tap], sums + tap * kLanes<T>);
}

/// The same for kTaps taps of any window, kRows rows at a time: each has sums of its own, since a few sums would wait
/// for one another.
template <class T, int kTaps, int kRows>
HWY_INLINE std::int64_t correlate_taps_rows(PlaneRows<const T> rows, const T* source, std::int64_t row_step,
                                            const PlaneTap* taps, T* sums, std::int64_t row) {
  if (row + kRows > rows.rows) return row;
  Vec<T> sum[kTaps * kRows];
  HWY_UNROLL(8)
  for (int i = 0; i < kTaps * kRows; ++i) sum[i] = hn::Zero(Tag<T>());
  for (; row + kRows <= rows.rows; row += kRows) {
    for (std::int64_t j = 0; j < rows.columns; j += kLanes<T>) {
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const auto value = ChannelMajor<T>::load(rows.data + (row + r) * rows.pitch + j, rows.columns - j);
        const T* const from = source + (row + r) * row_step + j;
        HWY_UNROLL(8)
        for (int i = 0; i < kTaps; ++i) {
          sum[r * kTaps + i] = hn::MulAdd(load_as<T>(from + taps[i].offset), value, sum[r * kTaps + i]);
        }
      }
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kTaps * kRows; ++i) add_to<T>(sum[i], sums + taps[i % kTaps].weight * kLanes<T>);
  return row;
}

template <class T, int kTaps>
HWY_NOINLINE void correlate_some_taps(PlaneRows<const T> rows, const T* source, std::int64_t row_step,
                                      const PlaneTap* taps, T* sums) {
  const std::int64_t row = correlate_taps_rows<T, kTaps,
                                               (kTaps > 4   ? 1
                                                : kTaps > 2 ? 2
                                                            : 4)>(rows, source, row_step, taps, sums, 0);
  correlate_taps_rows<T, kTaps, 1>(rows, source, row_step, taps, sums, row);
}

template <class T>
void correlate_taps(const PlaneRows<const T>& rows, const T* source, std::int64_t row_step, const PlaneTap* taps,
                    std::int64_t tap_count, T* sums) {
  std::int64_t i = 0;
  for (; i + 8 <= tap_count; i += 8) correlate_some_taps<T, 8>(rows, source, row_step, taps + i, sums);
  for (; i + 4 <= tap_count; i += 4) correlate_some_taps<T, 4>(rows, source, row_step, taps + i, sums);
  for (; i + 2 <= tap_count; i += 2) correlate_some_taps<T, 2>(rows, source, row_step, taps + i, sums);
  for (; i < tap_count; ++i) correlate_some_taps<T, 1>(rows, source, row_step, taps + i, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
