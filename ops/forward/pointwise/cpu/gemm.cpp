#include "fusedsc/common/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/forward/pointwise/cpu/gemm.cpp"
#include "hwy/foreach_target.h"

#include <algorithm>
#include <utility>

#include "fusedsc/forward/pointwise/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Rows of A that one pointer serves.
inline constexpr int kRowsPerPointer = 4;

/// Stores a block of sums to c, or adds it to what is there. What the stores could change, as far as the compiler
/// knows, is read once, before them.
template <int kRows, int kVectors, class T>
HWY_INLINE void store_block(Vec<T> (&sums)[kRows][kVectors], const Gemm<T>& g, T* c) {
  constexpr std::int64_t kLast = (kVectors - 1) * kLanes<T>;
  const std::int64_t c_row = g.c_row;
  const std::int64_t tail = g.columns - kLast;  // of the last vector; kLanes or more: all of it
  const bool whole = tail >= kLanes<T>;
  if (g.accumulate) {
    HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
      const T* from = c + r * c_row;
      HWY_UNROLL(4) for (int v = 0; v + 1 < kVectors; ++v) {
        sums[r][v] = hn::Add(sums[r][v], load_as<T>(from + v * kLanes<T>));
      }
      const auto last = whole ? load_as<T>(from + kLast) : load_partial<T>(from + kLast, tail);
      sums[r][kVectors - 1] = hn::Add(sums[r][kVectors - 1], last);
    }
  }
  HWY_UNROLL(16) for (int r = 0; r < kRows; ++r, c += c_row) {
    HWY_UNROLL(4) for (int v = 0; v + 1 < kVectors; ++v) store_as<T>(sums[r][v], c + v * kLanes<T>);
    if (whole) store_as<T>(sums[r][kVectors - 1], c + kLast);
    else store_partial<T>(sums[r][kVectors - 1], c + kLast, tail);
  }
}

/// kRows rows, from `row` on, of a product of kVectors vectors.
template <int kRows, int kVectors, class T>
HWY_INLINE void multiply_block(const Gemm<T>& g, std::int64_t row, Prefetcher& prefetcher) {
  const Tag<T> d;
  Vec<T> sums[kRows][kVectors];
  HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  {
    Prefetcher::Walk walk(prefetcher);
    const std::int64_t a_row = g.a_row, a_depth = g.a_depth, b_depth = g.b_depth;
    // Few pointers and few offsets: one of either per row would not fit the registers, and each reload of a spilled one
    // takes the place of a broadcast. The compiler must not see through them, or it would merge them again.
    constexpr int kPointers = (kRows + kRowsPerPointer - 1) / kRowsPerPointer;
    const T* a[kPointers];
    HWY_UNROLL(4) for (int i = 0; i < kPointers; ++i) {
      a[i] = g.a + (row + i * kRowsPerPointer) * a_row;
      asm("" : "+r"(a[i]));
    }
    const T* b = g.b;
    for (std::int64_t k = g.depth; k > 0; --k, b += b_depth) {
      walk.step();
      Vec<T> vectors[kVectors];
      HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) vectors[v] = load_as<T>(b + v * kLanes<T>);
      HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
        const auto element = hn::Set(d, a[r / kRowsPerPointer][(r % kRowsPerPointer) * a_row]);
        HWY_UNROLL(4) for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(element, vectors[v], sums[r][v]);
      }
      HWY_UNROLL(4) for (int i = 0; i < kPointers; ++i) a[i] += a_depth;
    }
  }
  store_block(sums, g, g.c + row * g.c_row);
}

/// A product of kVectors vectors, from `column` of C on, in blocks of rows as even as they can be.
template <int kVectors, class T>
void multiply_strip(const Gemm<T>& g, std::int64_t column, Prefetcher& prefetcher) {
  constexpr int kMost = kBlockRows[kVectors - 1];
  const std::int64_t blocks = (g.rows + kMost - 1) / kMost;
  if (blocks == 0) return;
  const std::int64_t least = g.rows / blocks, larger = g.rows % blocks;
  Range rows;
  for (std::int64_t i = 0; i < blocks; ++i) {
    rows = {rows.end, rows.end + least + (i < larger)};
    [&]<int... kRows>(std::integer_sequence<int, kRows...>) HWY_ATTR {
      static_cast<void>((
          (rows.size() == kRows + 1 && (multiply_block<kRows + 1, kVectors>(g, rows.begin, prefetcher), true)) || ...));
    }
    (std::make_integer_sequence<int, kMost>());
    if (g.finisher != nullptr) g.finisher->finish(rows, {column, column + g.columns});
  }
}

template <class T>
void multiply(const Gemm<T>& g, Prefetcher& prefetcher) {
  const ColumnStrips<T> strips(g.columns, g.blocks.vectors);
  for (std::int64_t i = 0; i < strips.count; ++i) {
    const Range vectors = strips.strip(i);
    const std::int64_t column = vectors.begin * kLanes<T>;
    Gemm<T> strip = g;
    const std::int64_t most = std::max<std::int64_t>(g.blocks.depth * g.blocks.vectors / vectors.size(), 1);
    const std::int64_t depth_blocks = std::max<std::int64_t>((g.depth + most - 1) / most, 1);
    strip.columns = std::min(g.columns - column, vectors.size() * kLanes<T>);
    strip.c += column;
    if (g.b_panels) strip.b_depth = vectors.size() * kLanes<T>;
    for (std::int64_t j = 0; j < depth_blocks; ++j) {
      const Range depth = part_of(g.depth, depth_blocks, j);
      strip.depth = depth.size();
      strip.a = g.a + depth.begin * g.a_depth;
      strip.b = g.b + (g.b_panels ? column * g.depth : column) + depth.begin * strip.b_depth;
      strip.accumulate = g.accumulate || j > 0;
      strip.finisher = j + 1 == depth_blocks ? g.finisher : nullptr;
      switch (vectors.size()) {
        case 1: multiply_strip<1>(strip, column, prefetcher); break;
        case 2: multiply_strip<2>(strip, column, prefetcher); break;
        case 3: multiply_strip<3>(strip, column, prefetcher); break;
        default: multiply_strip<kBlockVectors>(strip, column, prefetcher); break;
      }
    }
  }
}

void gemm(const Gemm<float>& g, Prefetcher& prefetcher) { multiply(g, prefetcher); }
void gemm(const Gemm<double>& g, Prefetcher& prefetcher) { multiply(g, prefetcher); }

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();
