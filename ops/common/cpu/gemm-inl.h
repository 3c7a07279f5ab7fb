/// Matrix products of tiles: register-blocked, one operand broadcast element by element, the other read in vectors.
/// No copies and no threads here; the operators choose tiles that stay in the caches.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_GEMM_INL_H_
#undef FUSEDSC_COMMON_CPU_GEMM_INL_H_
#else
#define FUSEDSC_COMMON_CPU_GEMM_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <algorithm>
#include <utility>

#include "fusedsc/common/cpu/prefetcher.h"
#include "fusedsc/common/cpu/simd-inl.h"
#include "fusedsc/common/cpu/slices.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// C(r, v) = sum over k of A(r, k) * B(k, v), for r < rows, v < columns, k < depth.
template <class T>
struct Gemm {
  std::int64_t rows = 0, columns = 0, depth = 0;
  const T* a = nullptr;  ///< A(r, k) = a[r*a_row + k*a_depth]
  std::int64_t a_row = 0, a_depth = 1;
  const T* b = nullptr;  ///< B(k, v) = b[k*b_depth + v], readable up to whole vectors
  std::int64_t b_depth = 0;
  bool b_panels = false;  ///< instead: B lies in panels, one per strip of ColumnStrips, each [depth][its columns]
  T* c = nullptr;  ///< C(r, v) = c[r*c_row + v], written up to `columns` exactly
  std::int64_t c_row = 0;
  bool accumulate = false;  ///< adds to C
};

/// The largest register blocks: kBlockRows[v-1] rows by v vectors. A block of that size fills the registers; the vectors
/// of B and the broadcast element take the rest. Every smaller one exists too, so that no remainder runs alone.
inline constexpr int kBlockVectors = kManyRegisters ? 4 : 3;
inline constexpr int kBlockRows[] = {kManyRegisters ? 14 : 12, kManyRegisters ? 14 : 6, kManyRegisters ? 8 : 4, 6};

/// How a product's columns are cut into strips, as even as they can be, of up to kBlockVectors vectors.
template <class T>
struct ColumnStrips {
  std::int64_t vectors, count;

  explicit ColumnStrips(std::int64_t columns)
      : vectors((columns + kLanes<T> - 1) / kLanes<T>), count((vectors + kBlockVectors - 1) / kBlockVectors) {}

  /// The vectors of a strip.
  Range strip(std::int64_t index) const { return part_of(vectors, count, index); }
};

/// Rows of A that one pointer serves.
inline constexpr int kRowsPerPointer = 4;

/// The sums of kRows rows by kVectors vectors from (row, column) on, handed to finish(sums, row, column).
template <int kRows, int kVectors, class T, class Finish>
HWY_INLINE void gemm_block(const Gemm<T>& g, std::int64_t row, std::int64_t column, Prefetcher& prefetcher,
                           const Finish& finish) {
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
    HWY_UNROLL(8) for (int i = 0; i < kPointers; ++i) {
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
      HWY_UNROLL(8) for (int i = 0; i < kPointers; ++i) a[i] += a_depth;
    }
  }
  finish(sums, row, column);
}

/// Puts a block's sums in their place in C.
template <class T>
struct StoreBlock {
  const Gemm<T>& g;

  template <int kRows, int kVectors>
  HWY_INLINE void operator()(const Vec<T> (&sums)[kRows][kVectors], std::int64_t row, std::int64_t column) const {
    constexpr std::int64_t kLast = (kVectors - 1) * kLanes<T>;
    const std::int64_t tail = g.columns - column - kLast;  // of the last vector; kLanes or more: all of it
    HWY_UNROLL(16) for (int r = 0; r < kRows; ++r) {
      T* c = g.c + (row + r) * g.c_row + column;
      HWY_UNROLL(4) for (int v = 0; v + 1 < kVectors; ++v) {
        store_as<T>(g.accumulate ? hn::Add(sums[r][v], load_as<T>(c + v * kLanes<T>)) : sums[r][v], c + v * kLanes<T>);
      }
      const Vec<T> last = sums[r][kVectors - 1];
      if (tail >= kLanes<T>) {
        store_as<T>(g.accumulate ? hn::Add(last, load_as<T>(c + kLast)) : last, c + kLast);
      } else {
        store_partial<T>(g.accumulate ? hn::Add(last, load_partial<T>(c + kLast, tail)) : last, c + kLast, tail);
      }
    }
  }
};

/// All rows of a strip of kVectors vectors, in blocks as even as they can be.
template <int kVectors, class T, class Finish>
HWY_INLINE void gemm_strip(const Gemm<T>& g, std::int64_t column, Prefetcher& prefetcher, const Finish& finish) {
  constexpr int kMax = kBlockRows[kVectors - 1];
  const std::int64_t blocks = (g.rows + kMax - 1) / kMax;
  for (std::int64_t i = 0, row = 0; i < blocks; ++i) {
    const std::int64_t rows = (g.rows - row) / (blocks - i);
    [&]<int... kRows>(std::integer_sequence<int, kRows...>) HWY_ATTR {
      (void)((rows == kRows + 1 && (gemm_block<kRows + 1, kVectors>(g, row, column, prefetcher, finish), true)) || ...);
    }
    (std::make_integer_sequence<int, kMax>());
    row += rows;
  }
}

/// The product in blocks; finish(sums, row, column) consumes each: a callable for every (&sums)[kRows][kVectors].
/// Inlines every block size: for the few callers whose epilogue belongs in registers.
template <class T, class Finish>
HWY_INLINE void gemm_blocks(const Gemm<T>& g, Prefetcher& prefetcher, const Finish& finish) {
  const ColumnStrips<T> strips(g.columns);
  for (std::int64_t i = 0; i < strips.count; ++i) {
    const Range vectors = strips.strip(i);
    const std::int64_t column = vectors.begin * kLanes<T>;
    Gemm<T> strip = g;
    strip.b += g.b_panels ? column * g.depth : column;
    if (g.b_panels) strip.b_depth = vectors.size() * kLanes<T>;
    [&]<int... kVectors>(std::integer_sequence<int, kVectors...>) HWY_ATTR {
      (void)((vectors.size() == kVectors + 1 &&
              (gemm_strip<kVectors + 1>(strip, column, prefetcher, finish), true)) ||
             ...);
    }
    (std::make_integer_sequence<int, kBlockVectors>());
  }
}

/// Iterations of the inner loops of a product: the pace of a Prefetcher.
template <class T>
std::int64_t gemm_steps(const Gemm<T>& g) {
  const ColumnStrips<T> strips(g.columns);
  if (strips.count == 0) return 0;
  const std::int64_t rows = kBlockRows[strips.strip(0).size() - 1];
  return strips.count * ((g.rows + rows - 1) / rows) * g.depth;
}

/// The product, stored in C. Compiled once, in gemm.cpp.
void gemm(const Gemm<float>& g, Prefetcher& prefetcher);
void gemm(const Gemm<double>& g, Prefetcher& prefetcher);

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
