/// Rows of a channel on their way between a tensor and scratch memory, and its few values: weights, scales, biases.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_ROWS_INL_H_
#undef FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_ROWS_INL_H_
#else
#define FUSEDSC_FORWARD_DEPTHWISE_CPU_PLANE_ROWS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/patch-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// to[i] = map(from[i], i) for i < count, and zeros behind up to a whole vector.
template <class T, class Storage, class Map>
HWY_INLINE void map_row(const Storage* from, std::int64_t count, T* to, const Map& map) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) store_as<T>(map(load_as<T>(from + i), i), to + i);
  if (i == count) return;
  const auto rest = map(load_partial<T>(from + i, count - i), i);
  store_as<T>(ChannelMajor<T>::zero_behind(rest, count - i), to + i);
}

/// Copies rows, with zeros behind each up to a whole vector.
template <class T, class Storage>
void copy_rows(const Storage* from, std::int64_t from_pitch, std::int64_t rows, std::int64_t count, T* to,
               std::int64_t to_pitch) {
  const std::int64_t whole = count / kLanes<T> * kLanes<T>, rest = count - whole;
  for (std::int64_t h = 0; h < rows; ++h, from += from_pitch, to += to_pitch) {
    for (std::int64_t i = 0; i < whole; i += kLanes<T>) store_as<T>(load_as<T>(from + i), to + i);
    if (rest > 0) store_as<T>(load_partial<T>(from + whole, rest), to + whole);
  }
}

/// even[i] = from[2*i], odd[i] = from[2*i + 1], and zeros behind up to a whole vector.
template <class T>
HWY_INLINE void split_row(const T* from, std::int64_t count, T* even, T* odd) {
  const Tag<T> d;
  Vec<T> v0, v1;
  std::int64_t i = 0;
  for (; i + 2 * kLanes<T> <= count; i += 2 * kLanes<T>) {
    hn::LoadInterleaved2(d, from + i, v0, v1);
    store_as<T>(v0, even + i / 2);
    store_as<T>(v1, odd + i / 2);
  }
  if (i == count) return;
  T rest[2 * kLanes<T>] = {};
  std::memcpy(rest, from + i, static_cast<std::size_t>(count - i) * sizeof(T));
  hn::LoadInterleaved2(d, rest, v0, v1);
  store_as<T>(v0, even + i / 2);
  store_as<T>(v1, odd + i / 2);
}

/// The value of channel `c`, or `missing` where the vector is empty.
template <class T>
HWY_INLINE T channel_value(const ConstChannelVector& vector, std::int64_t c, T missing) {
  T value = missing;
  if (!vector) return value;
  with_storage<T>(vector.dtype, [&]<class Storage>() {
    value = static_cast<T>(scalar_value(static_cast<const Storage*>(vector.data)[c]));
  });
  return value;
}

/// Writes a row of one channel of y.
template <class T>
void store_row(const T* from, const TensorView& y, std::int64_t n, std::int64_t c, std::int64_t h) {
  with_storage<T>(
      y.dtype, [&]<class Storage>() HWY_ATTR { convert_back<T>(from, element<Storage>(y, n, c, h, 0), y.sizes[3]); });
}

/// body(tap, element) for the elements of a channel of a depthwise weight, taps counted from the last one if
/// `reversed`.
template <class Storage, class View, class Body>
HWY_INLINE void for_each_tap(const View& weight, std::int64_t c, bool reversed, const Body& body) {
  const std::int64_t count = weight.sizes[2] * weight.sizes[3];
  for (std::int64_t kh = 0, tap = 0; kh < weight.sizes[2]; ++kh) {
    for (std::int64_t kw = 0; kw < weight.sizes[3]; ++kw, ++tap) {
      body(reversed ? count - 1 - tap : tap, element<Storage>(weight, c, 0, kh, kw));
    }
  }
}

template <class T>
void pack_taps(const ConstTensorView& weight, std::int64_t c, bool reversed, T* to) {
  with_storage<T>(weight.dtype, [&]<class Storage>() {
    for_each_tap<Storage>(weight, c, reversed, [&](std::int64_t tap, const Storage* from) {
      to[tap] = static_cast<T>(scalar_value(*from));
    });
  });
}

template <class T>
void unpack_taps(const T* from, const TensorView& weight, std::int64_t c, bool reversed) {
  with_storage<T>(weight.dtype, [&]<class Storage>() {
    for_each_tap<Storage>(weight, c, reversed,
                          [&](std::int64_t tap, Storage* to) { *to = scalar_storage<Storage>(from[tap]); });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
