/// Squeeze-and-excitation on patches in cache. `Major` is PositionMajor<T> or ChannelMajor<T>.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_PATCHES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_PATCHES_INL_H_
#undef FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_PATCHES_INL_H_
#else
#define FUSEDSC_FUSED_SQUEEZE_EXCITE_SQUEEZE_EXCITE_PATCHES_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/fusion-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// sums += the sum over positions of activation(scale*x + shift), each times its element of `factors` where there are
/// any.
template <class Major, class T>
void add_activated(Patch<const T> x, AffineVectors<T> affine, Patch<const T> factors, Extent extent, T* sums) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_unit<Major>(extent.channels, [=]<int kCount>(std::int64_t first) HWY_ATTR {
      const Coefficients<Major, kCount, T> scale(affine.scale, first), shift(affine.shift, first);
      Vec<T> sum[kCount];
      HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) sum[u] = hn::Zero(Tag<T>());
      // Also of the closure, where this is a function of its own.
      const Patch<const T> from = x, by = factors;
      const std::int64_t positions = extent.positions;
      for (std::int64_t p = 0; p < positions; p += Major::kPositions) {
        const std::int64_t left = positions - p;
        HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
          const std::int64_t c = first + u * Major::kChannels;
          const auto z = hn::MulAdd(Major::load(Major::at(from, c, p), left), scale.of[u], shift.of[u]);
          auto value = Major::zero_behind(activate<kActivation, T>(z), left);
          if (by.data != nullptr) value = hn::Mul(value, Major::load(Major::at(by, c, p), left));
          sum[u] = hn::Add(sum[u], value);
        }
      }
      for (int u = 0; u < kCount; ++u) add_total<Major>(sum[u], sums, first + u * Major::kChannels);
    });
  });
}

/// to = activation(scale*x + shift) * gate
template <class Major, class T>
void apply_gate(Patch<const T> x, AffineVectors<T> affine, const T* gate, Extent extent, Patch<T> to) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_vector<Major>(extent, [=](std::int64_t c, std::int64_t p, std::int64_t left) HWY_ATTR {
      const auto z = hn::MulAdd(Major::load(Major::at(x, c, p), left), Major::coefficient(affine.scale, c),
                                Major::coefficient(affine.shift, c));
      const auto value = hn::Mul(activate<kActivation, T>(z), Major::coefficient(gate, c));
      Major::store(value, Major::at(to, c, p), left);
    });
  });
}

/// to = (grad*gate + offset) * activation'(scale*x + shift), and its sums; `to` may be `grad`.
template <class Major, class T>
void apply_gate_backward(Patch<const T> grad, const T* gate, const T* offset, Patch<const T> x, AffineVectors<T> affine,
                         SumVectors<T> sums, Extent extent, Patch<T> to) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_unit<Major>(extent.channels, [=]<int kCount>(std::int64_t first) HWY_ATTR {
      const Coefficients<Major, kCount, T> scale(affine.scale, first), shift(affine.shift, first), factor(gate, first),
          added(offset, first), mean(sums.mean, first);
      Vec<T> sum[kCount], sum_centered[kCount];
      HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) sum[u] = sum_centered[u] = hn::Zero(Tag<T>());
      const Patch<const T> from = x, from_grad = grad;
      const Patch<T> result = to;
      const std::int64_t positions = extent.positions;
      for (std::int64_t p = 0; p < positions; p += Major::kPositions) {
        const std::int64_t left = positions - p;
        HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
          const std::int64_t c = first + u * Major::kChannels;
          const auto value = Major::load(Major::at(from, c, p), left);
          const auto z = hn::MulAdd(value, scale.of[u], shift.of[u]);
          const auto g_activated = hn::MulAdd(Major::load(Major::at(from_grad, c, p), left), factor.of[u], added.of[u]);
          const auto g = Major::zero_behind(activate_backward<kActivation, T>(g_activated, z), left);
          sum[u] = hn::Add(sum[u], g);
          sum_centered[u] = hn::MulAdd(g, hn::Sub(value, mean.of[u]), sum_centered[u]);
          Major::store(g, Major::at(result, c, p), left);
        }
      }
      for (int u = 0; u < kCount; ++u) {
        add_total<Major>(sum[u], sums.grad, first + u * Major::kChannels);
        add_total<Major>(sum_centered[u], sums.grad_times_centered, first + u * Major::kChannels);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
