/// Lanes of a vector that are wanted, brought side by side.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FORWARD_SPARSE_CPU_COMPACTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FORWARD_SPARSE_CPU_COMPACTION_INL_H_
#undef FUSEDSC_FORWARD_SPARSE_CPU_COMPACTION_INL_H_
#else
#define FUSEDSC_FORWARD_SPARSE_CPU_COMPACTION_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include <array>
#include <bit>
#include <cstdint>

#include "fusedsc/common/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// Of each mask the lanes that it has, in order, and then others. Highway's own table, of version 1.0, is copied to the
/// stack by each call of Compress.
template <class Index, std::size_t kCount>
constexpr auto lanes_of_masks() {
  std::array<std::array<Index, kCount>, std::size_t{1} << kCount> table{};
  for (std::size_t mask = 0; mask < table.size(); ++mask) {
    std::size_t next = 0;
    for (std::size_t lane = 0; lane < kCount; ++lane) {
      if ((mask >> lane & 1) != 0) table[mask][next++] = static_cast<Index>(lane);
    }
  }
  return table;
}

/// Of a mask; applied to as many vectors as there are. What lies behind the lanes that are wanted is anything.
template <class T>
class Compaction {
 public:
  explicit Compaction(hn::MFromD<Tag<T>> given) : given_(given) {
    std::array<std::uint8_t, 8> bytes{};
    hn::StoreMaskBits(Tag<T>(), given, bytes.data());
    bits_ = bytes[0] | std::uint32_t{bytes[1]} << 8;
  }

  /// A bit for each lane.
  std::uint32_t bits() const { return bits_; }
  std::int64_t count() const { return std::popcount(bits_); }

  /// Of T or of the unsigned numbers of its size.
  template <class V>
  HWY_INLINE V of(V vector) const {
    const hn::DFromV<V> d;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_SCALAR
    return hn::Compress(vector, hn::RebindMask(d, given_));
#else
    using Index = hwy::MakeSigned<T>;
    alignas(64) static constexpr auto kTable = lanes_of_masks<Index, static_cast<std::size_t>(kLanes<T>)>();
    return hn::TableLookupLanes(vector, hn::SetTableIndices(d, kTable[bits_].data()));
#endif
  }

 private:
  hn::MFromD<Tag<T>> given_;
  std::uint32_t bits_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
