/// Matrix products of tiles: register-blocked, one operand broadcast element by element, the other read in vectors.
/// No copies and no threads here; the operators choose tiles that stay in the caches.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_POINTWISE_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_POINTWISE_CPU_GEMM_INL_H_
#undef FUSEDSC_FORWARD_POINTWISE_CPU_GEMM_INL_H_
#else
#define FUSEDSC_FORWARD_POINTWISE_CPU_GEMM_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/prefetcher.h"
#include "fusedsc/common/cpu/simd-inl.h"
#include "fusedsc/common/cpu/slices.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// What becomes of C afterwards: told of each block of C that is finished, while that is in the first-level cache.
struct BlockFinisher {
  virtual void finish(const Range& rows, const Range& columns) const = 0;

 protected:
  ~BlockFinisher() = default;
};

/// The largest register blocks: kBlockRows[v-1] rows by v vectors. A block of that size fills the registers, with the
/// vectors of B and the broadcast element. Every smaller one exists too, so that no remainder runs alone.
inline constexpr int kBlockVectors = kManyRegisters ? 4 : 3;
inline constexpr int kBlockRows[] = {kManyRegisters ? 14 : 12, kManyRegisters ? 14 : 6, kManyRegisters ? 8 : 4, 6};

/// How a product is cut into blocks.
struct GemmBlocks {
  /// Of a strip of columns, at most; no more than kBlockVectors.
  std::int64_t vectors = kBlockVectors;
  /// What is worked off at once of strips of so many vectors, more of narrower ones: so much of B stays in the
  /// first-level cache for all row blocks.
  std::int64_t depth = 384 / kBlockVectors;
};

/// C(r, v) = sum over k of A(r, k) * B(k, v), for r < rows, v < columns, k < depth.
template <class T>
struct Gemm {
  std::int64_t rows = 0, columns = 0, depth = 0;
  const T* a = nullptr;  ///< A(r, k) = a[r*a_row + k*a_depth]
  std::int64_t a_row = 0, a_depth = 1;
  const T* b = nullptr;  ///< B(k, v) = b[k*b_depth + v], readable up to whole vectors
  std::int64_t b_depth = 0;
  bool b_panels = false;  ///< instead: B lies in panels, one per strip of ColumnStrips, each [depth][its columns]
  T* c = nullptr;         ///< C(r, v) = c[r*c_row + v], written up to `columns` exactly
  std::int64_t c_row = 0;
  bool accumulate = false;  ///< adds to C
  const BlockFinisher* finisher = nullptr;
  GemmBlocks blocks{};
};

/// How a product's columns are cut into strips, as even as they can be, of up to `most` vectors.
template <class T>
struct ColumnStrips {
  std::int64_t vectors, count;

  ColumnStrips(std::int64_t columns, std::int64_t most)
      : vectors((columns + kLanes<T> - 1) / kLanes<T>), count((vectors + most - 1) / most) {}

  /// The vectors of a strip.
  Range strip(std::int64_t index) const { return part_of(vectors, count, index); }
};

/// Iterations of the inner loops of a product: the pace of a Prefetcher.
template <class T>
std::int64_t gemm_steps(const Gemm<T>& g) {
  const ColumnStrips<T> strips(g.columns, g.blocks.vectors);
  if (strips.count == 0) return 0;
  const std::int64_t rows = kBlockRows[strips.strip(0).size() - 1];
  return strips.count * ((g.rows + rows - 1) / rows) * g.depth;
}

/// Computes the product; compiled once, in gemm.cpp.
void gemm(const Gemm<float>& g, Prefetcher& prefetcher);
void gemm(const Gemm<double>& g, Prefetcher& prefetcher);

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
