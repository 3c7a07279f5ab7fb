/// Per-channel mean and sum of squared deviations (M2), gathered tile by tile and merged by Chan's formula
/// (Chan, Golub, LeVeque 1979): exact where a sum of squares would cancel.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_MOMENTS_INL_H_
#undef FUSEDSC_COMMON_CPU_MOMENTS_INL_H_
#else
#define FUSEDSC_COMMON_CPU_MOMENTS_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// How much a tile of `added` elements counts for when it joins `present` ones.
template <class T>
struct MergeWeights {
  T mean;  ///< mean += mean_weight * (tile mean - mean)
  T m2;    ///< M2 += tile M2 + m2_weight * (tile mean - mean)^2

  MergeWeights(std::int64_t present, std::int64_t added)
      : mean(static_cast<T>(static_cast<double>(added) / static_cast<double>(present + added))),
        m2(static_cast<T>(static_cast<double>(present) * static_cast<double>(added) /
                          static_cast<double>(present + added))) {}
};

/// The running moments of some channels (whole vectors of them), and how many elements each has seen.
template <class T>
struct Moments {
  T* mean = nullptr;
  T* m2 = nullptr;
  std::int64_t count = 0;

  explicit operator bool() const { return mean != nullptr; }

  void clear(std::int64_t channels) {
    std::memset(mean, 0, static_cast<std::size_t>(channels) * sizeof(T));
    std::memset(m2, 0, static_cast<std::size_t>(channels) * sizeof(T));
    count = 0;
  }

  HWY_INLINE void merge(std::int64_t channel, Vec<T> tile_mean, Vec<T> tile_m2, const MergeWeights<T>& weights) {
    const Tag<T> d;
    const auto old = load_as<T>(mean + channel);
    const auto delta = hn::Sub(tile_mean, old);
    store_as<T>(hn::MulAdd(delta, hn::Set(d, weights.mean), old), mean + channel);
    const auto spread = hn::MulAdd(hn::Mul(delta, delta), hn::Set(d, weights.m2), tile_m2);
    store_as<T>(hn::Add(load_as<T>(m2 + channel), spread), m2 + channel);
  }

  /// Adds `positions` elements, `pitch` apart, of each channel.
  void add_tile(const T* tile, std::int64_t positions, std::int64_t pitch, std::int64_t channels) {
    if (positions == 0) return;
    const Tag<T> d;
    const MergeWeights<T> weights(count, positions);
    const auto inverse = hn::Set(d, T(1) / static_cast<T>(positions));
    for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
      auto sum = hn::Zero(d);
      for (std::int64_t p = 0; p < positions; ++p) sum = hn::Add(sum, load_as<T>(tile + p * pitch + c));
      const auto tile_mean = hn::Mul(sum, inverse);
      auto tile_m2 = hn::Zero(d);
      for (std::int64_t p = 0; p < positions; ++p) {
        const auto deviation = hn::Sub(load_as<T>(tile + p * pitch + c), tile_mean);
        tile_m2 = hn::MulAdd(deviation, deviation, tile_m2);
      }
      merge(c, tile_mean, tile_m2, weights);
    }
    count += positions;
  }

  /// Adds the moments of other elements of the same channels.
  void add(const Moments& other, std::int64_t channels) {
    if (other.count == 0) return;
    const MergeWeights<T> weights(count, other.count);
    for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
      merge(c, load_as<T>(other.mean + c), load_as<T>(other.m2 + c), weights);
    }
    count += other.count;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
