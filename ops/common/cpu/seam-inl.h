/// The seams around a convolution, on patches in cache: BatchNorm, activations, residuals, statistics and the sums that
/// BatchNorm's backward needs. `Major` is PositionMajor<T> or ChannelMajor<T>.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_SEAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_SEAM_INL_H_
#undef FUSEDSC_COMMON_CPU_SEAM_INL_H_
#else
#define FUSEDSC_COMMON_CPU_SEAM_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/gradient_tile-inl.h"
#include "fusedsc/common/cpu/moments-inl.h"
#include "fusedsc/common/cpu/patch-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// How much of a patch there is.
struct Extent {
  std::int64_t positions = 0, channels = 0;
};

/// sums[c..] += the vector's total.
template <class Major, class T>
HWY_INLINE void add_total(Vec<T> vector, T* sums, std::int64_t channel) {
  Major::put(hn::Add(Major::coefficient(sums, channel), Major::total(vector)), sums, channel);
}

/// to = activation(scale*from + shift) [+ residual]; `to` may be `from`.
template <class Major, class T>
void apply_epilogue(const Patch<const T>& from, const AffineVectors<T>& affine, const Patch<const T>& residual,
                    const Extent& extent, const Patch<T>& to) {
  with_activation(affine.activation, [&]<Activation kActivation>() HWY_ATTR {
    for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) {
      const auto scale = Major::coefficient(affine.scale, c), shift = Major::coefficient(affine.shift, c);
      for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
        const std::int64_t left = extent.positions - p;
        const auto z = hn::MulAdd(Major::load(Major::at(from, c, p), left), scale, shift);
        auto result = activate<kActivation, T>(z);
        if (residual.data != nullptr) result = hn::Add(result, Major::load(Major::at(residual, c, p), left));
        Major::store(result, Major::at(to, c, p), left);
      }
    }
  });
}

/// to = grad_scale*grad + output_scale*output + offset; `to` may be `grad`.
template <class Major, class T>
void apply_gradient_prologue(const Patch<const T>& grad, const Patch<const T>& output, const T* grad_scale,
                             const T* output_scale, const T* offset, const Extent& extent, const Patch<T>& to) {
  for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) {
    const auto scale = Major::coefficient(grad_scale, c), from_output = Major::coefficient(output_scale, c);
    const auto constant = Major::coefficient(offset, c);
    for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
      const std::int64_t left = extent.positions - p;
      const auto rest = hn::MulAdd(Major::load(Major::at(output, c, p), left), from_output, constant);
      const auto value = hn::MulAdd(Major::load(Major::at(grad, c, p), left), scale, rest);
      Major::store(value, Major::at(to, c, p), left);
    }
  }
}

/// grad *= activation'(scale*x + shift), stored unless const; adds what BatchNorm's backward needs of it to `sums`.
template <class Major, class T, class Grad>
void apply_activation_backward(const Patch<Grad>& grad, const Patch<const T>& x, const AffineVectors<T>& affine,
                               const SumVectors<T>& sums, const Extent& extent) {
  with_activation(affine.activation, [&]<Activation kActivation>() HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) {
      const auto scale = Major::coefficient(affine.scale, c), shift = Major::coefficient(affine.shift, c);
      const auto mean = sums ? Major::coefficient(sums.mean, c) : hn::Zero(d);
      auto sum = hn::Zero(d), sum_centered = hn::Zero(d);
      for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
        const std::int64_t left = extent.positions - p;
        const auto value = Major::load(Major::at(x, c, p), left);
        const auto g = activate_backward<kActivation, T>(Major::load(Major::at(grad, c, p), left),
                                                         hn::MulAdd(value, scale, shift));
        sum = hn::Add(sum, g);
        sum_centered = hn::MulAdd(g, hn::Sub(value, mean), sum_centered);
        if constexpr (!std::is_const_v<Grad>) Major::store(g, Major::at(grad, c, p), left);
      }
      if (!sums) continue;
      add_total<Major>(sum, sums.grad, c);
      add_total<Major>(sum_centered, sums.grad_times_centered, c);
    }
  });
}

/// to += from.
template <class Major, class T>
void add_patch(const Patch<const T>& from, const Extent& extent, const Patch<T>& to) {
  for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) {
    for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
      const std::int64_t left = extent.positions - p;
      const auto sum = hn::Add(Major::load(Major::at(from, c, p), left), Major::load(Major::at(to, c, p), left));
      Major::store(sum, Major::at(to, c, p), left);
    }
  }
}

/// sums[c] += the sum of channel c.
template <class Major, class T>
void add_channel_sums(const Patch<const T>& from, const Extent& extent, T* sums) {
  for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) {
    auto sum = hn::Zero(Tag<T>());
    for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
      sum = hn::Add(sum, Major::load(Major::at(from, c, p), extent.positions - p));
    }
    add_total<Major>(sum, sums, c);
  }
}

/// Adds a patch to the running moments of its channels.
template <class Major, class T>
void add_moments(const Patch<const T>& patch, const Extent& extent, Moments<T>& moments) {
  const Tag<T> d;
  const MergeWeights<T> weights(moments.count, extent.positions);
  const auto inverse = hn::Set(d, T(1) / static_cast<T>(extent.positions));
  for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) {
    auto sum = hn::Zero(d);
    for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
      sum = hn::Add(sum, Major::load(Major::at(patch, c, p), extent.positions - p));
    }
    const auto mean = hn::Mul(Major::total(sum), inverse);
    auto m2 = hn::Zero(d);
    for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) {
      const std::int64_t left = extent.positions - p;
      const auto deviation = Major::zero_behind(hn::Sub(Major::load(Major::at(patch, c, p), left), mean), left);
      m2 = hn::MulAdd(deviation, deviation, m2);
    }
    const auto old = Major::coefficient(moments.mean, c);
    const auto delta = hn::Sub(mean, old);
    const auto spread = hn::MulAdd(hn::Mul(delta, delta), hn::Set(d, weights.m2), Major::total(m2));
    Major::put(hn::MulAdd(delta, hn::Set(d, weights.mean), old), moments.mean, c);
    Major::put(hn::Add(Major::coefficient(moments.m2, c), spread), moments.m2, c);
  }
  moments.count += extent.positions;
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
