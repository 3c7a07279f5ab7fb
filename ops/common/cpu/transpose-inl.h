/// Transposing through the first-level cache, in squares of 128-bit vectors: 8 x 8 elements of 16 bits, 4 x 4 floats or
/// 2 x 2 doubles.

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
HWY_INLINE void transpose_squares(D, const T* from, std::int64_t, T* to, std::int64_t) {
  *to = *from;
}
#else
template <class T>
inline constexpr std::int64_t kSide = 16 / sizeof(T);

/// 128-bit blocks, `pitch` apart, as a vector. Each is loaded into its place: to store the blocks of a vector apart
/// would take a shuffle for each.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* from, std::int64_t pitch) {
  constexpr std::int64_t kBlocks = static_cast<std::int64_t>(hn::MaxLanes(D())) / kSide<T>;
  if constexpr (kBlocks == 1) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, load_blocks(half, from + kBlocks / 2 * pitch, pitch), load_blocks(half, from, pitch));
  }
}

/// As many rows as a vector has elements, each of kSide elements, `from_pitch` apart, to kSide rows of a vector each,
/// `to_pitch` apart.
template <class D>
HWY_INLINE void transpose_squares(D d, const float* from, std::int64_t from_pitch, float* to, std::int64_t to_pitch) {
  const std::int64_t block_pitch = kSide<float> * from_pitch;
  const auto a = load_blocks(d, from, block_pitch), b = load_blocks(d, from + from_pitch, block_pitch);
  const auto c = load_blocks(d, from + 2 * from_pitch, block_pitch);
  const auto e = load_blocks(d, from + 3 * from_pitch, block_pitch);
  const hn::Repartition<double, D> pairs;
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(pairs, hn::InterleaveLower(d, c, e));
  const auto ce_high = hn::BitCast(pairs, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ce_low)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ce_low)), d, to + to_pitch);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ce_high)), d, to + 2 * to_pitch);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ce_high)), d, to + 3 * to_pitch);
}

template <class D>
HWY_INLINE void transpose_squares(D d, const double* from, std::int64_t from_pitch, double* to, std::int64_t to_pitch) {
  const std::int64_t block_pitch = kSide<double> * from_pitch;
  const auto a = load_blocks(d, from, block_pitch), b = load_blocks(d, from + from_pitch, block_pitch);
  hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
  hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + to_pitch);
}

template <class D>
HWY_INLINE void transpose_squares(D d, const std::uint16_t* from, std::int64_t from_pitch, std::uint16_t* to,
                                  std::int64_t to_pitch) {
  const hn::Repartition<float, D> by_pairs;
  const hn::Repartition<double, D> by_fours;
  hn::Vec<decltype(by_pairs)> pairs[8];  // [row / 2][half]: pairs of rows' elements
  HWY_UNROLL(4)
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto a = load_blocks(d, from + 2 * i * from_pitch, 8 * from_pitch);
    const auto b = load_blocks(d, from + (2 * i + 1) * from_pitch, 8 * from_pitch);
    pairs[2 * i] = hn::BitCast(by_pairs, hn::InterleaveLower(d, a, b));
    pairs[2 * i + 1] = hn::BitCast(by_pairs, hn::InterleaveUpper(d, a, b));
  }
  HWY_UNROLL(4)
  for (std::int64_t i = 0; i < 4; ++i) {  // of a quarter of the columns
    const std::int64_t half = i / 2;
    const auto fours = [&](const auto& a, const auto& b) HWY_ATTR {
      return hn::BitCast(by_fours,
                         i % 2 == 0 ? hn::InterleaveLower(by_pairs, a, b) : hn::InterleaveUpper(by_pairs, a, b));
    };
    const auto upper = fours(pairs[half], pairs[2 + half]), lower = fours(pairs[4 + half], pairs[6 + half]);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(by_fours, upper, lower)), d, to + 2 * i * to_pitch);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(by_fours, upper, lower)), d, to + (2 * i + 1) * to_pitch);
  }
}
#endif

/// As below, in vectors of D, of which there must be a row and a square at least.
template <class D, class T>
HWY_INLINE void transpose_rows(D d, const T* from, std::int64_t from_pitch, T* to, std::int64_t to_pitch,
                               std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kRows = static_cast<std::int64_t>(hn::MaxLanes(D()));
  for (std::int64_t next = 0; next < rows; next += kRows) {
    const std::int64_t i = std::min(next, rows - kRows);
    for (std::int64_t column = 0; column < columns; column += kSide<T>) {
      const std::int64_t j = std::min(column, columns - kSide<T>);
      transpose_squares(d, from + i * from_pitch + j, from_pitch, to + j * to_pitch + i, to_pitch);
    }
  }
}

/// to[j][i] = from[i][j] for i < rows, j < columns. The last squares overlap the ones before instead of leaving a rest.
template <class T>
void transpose(const T* from, std::int64_t from_pitch, T* to, std::int64_t to_pitch, std::int64_t rows,
               std::int64_t columns) {
  constexpr std::int64_t kHalf = std::max(kLanes<T> / 2, kSide<T>);
  if (rows < kSide<T> || columns < kSide<T>) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
    }
  } else if (rows >= kLanes<T>) {
    transpose_rows(Tag<T>(), from, from_pitch, to, to_pitch, rows, columns);
  } else if (rows >= kHalf) {
    transpose_rows(hn::CappedTag<T, kHalf>(), from, from_pitch, to, to_pitch, rows, columns);
  } else {
    transpose_rows(hn::CappedTag<T, kSide<T>>(), from, from_pitch, to, to_pitch, rows, columns);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
