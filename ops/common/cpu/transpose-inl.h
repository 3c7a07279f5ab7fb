/// Transposing through the first-level cache, in squares of 128-bit vectors: 4 x 4 floats or 2 x 2 doubles.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_TRANSPOSE_INL_H_
#undef FUSEDSC_COMMON_CPU_TRANSPOSE_INL_H_
#else
#define FUSEDSC_COMMON_CPU_TRANSPOSE_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>

#include "fusedsc/common/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
template <class T>
inline constexpr std::int64_t kSide = 1;

template <class D, class T>
HWY_INLINE void transpose_strip(D, const T* from, std::int64_t, T* to, std::int64_t) {
  *to = *from;
}
#else
template <class T>
inline constexpr std::int64_t kSide = 16 / sizeof(T);

/// Stores the 128-bit blocks of a vector `pitch` apart.
template <class D, class T>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, T* to, std::int64_t pitch) {
  constexpr std::int64_t kBlocks = static_cast<std::int64_t>(hn::MaxLanes(D())) / kSide<T>;
  if constexpr (kBlocks == 1) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> half;
    store_blocks(half, hn::LowerHalf(half, v), to, pitch);
    store_blocks(half, hn::UpperHalf(half, v), to + kBlocks / 2 * pitch, pitch);
  }
}

/// kSide rows of a vector each, `from_pitch` apart, to as many rows of kSide elements, `to_pitch` apart.
template <class D>
HWY_INLINE void transpose_strip(D d, const float* from, std::int64_t from_pitch, float* to, std::int64_t to_pitch) {
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + from_pitch);
  const auto c = hn::LoadU(d, from + 2 * from_pitch), e = hn::LoadU(d, from + 3 * from_pitch);
  const hn::Repartition<double, D> pairs;
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
  const auto ce_high = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
  const std::int64_t block_pitch = kSide<float> * to_pitch;
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ce_low)), to, block_pitch);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ce_low)), to + to_pitch, block_pitch);
  store_blocks(d, hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ce_high)), to + 2 * to_pitch, block_pitch);
  store_blocks(d, hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ce_high)), to + 3 * to_pitch, block_pitch);
}

template <class D>
HWY_INLINE void transpose_strip(D d, const double* from, std::int64_t from_pitch, double* to, std::int64_t to_pitch) {
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + from_pitch);
  store_blocks(d, hn::InterleaveLower(d, a, b), to, kSide<double> * to_pitch);
  store_blocks(d, hn::InterleaveUpper(d, a, b), to + to_pitch, kSide<double> * to_pitch);
}
#endif

/// to[j][i] = from[i][j] for i < rows, j < columns. The last squares overlap the ones before instead of leaving a rest.
template <class T>
void transpose(const T* from, std::int64_t from_pitch, T* to, std::int64_t to_pitch, std::int64_t rows,
               std::int64_t columns) {
  if (rows < kSide<T> || columns < kSide<T>) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
    }
    return;
  }
  // A vector's worth of rows at a time, so that each line of `to` is written whole while it is in the cache.
  for (std::int64_t block = 0; block < rows; block += kLanes<T>) {
    const std::int64_t end = std::min(block + kLanes<T>, rows);
    const auto transpose_columns = [&](auto d, std::int64_t j) HWY_ATTR {
      for (std::int64_t next = block; next < end; next += kSide<T>) {
        const std::int64_t i = std::min(next, rows - kSide<T>);
        transpose_strip(d, from + i * from_pitch + j, from_pitch, to + j * to_pitch + i, to_pitch);
      }
    };
    std::int64_t j = 0;
    for (; j + kLanes<T> <= columns; j += kLanes<T>) transpose_columns(Tag<T>(), j);
    for (; j < columns; j += kSide<T>) transpose_columns(hn::CappedTag<T, kSide<T>>(), std::min(j, columns - kSide<T>));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
