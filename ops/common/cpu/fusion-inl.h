/// What is fused with a convolution, on patches in cache: BatchNorm, activations, residuals, statistics and the sums
/// that BatchNorm's backward needs. `Major` is PositionMajor<T> or ChannelMajor<T>.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_FUSION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_FUSION_INL_H_
#undef FUSEDSC_COMMON_CPU_FUSION_INL_H_
#else
#define FUSEDSC_COMMON_CPU_FUSION_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/moments-inl.h"
#include "fusedsc/common/cpu/patch-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// How much of a patch there is.
struct Extent {
  std::int64_t positions = 0, channels = 0;
};

/// A GradientPrologue's vectors for the channels of a tile, padded with zeros to whole vectors.
template <class T>
struct GradientVectors {
  const T* grad_scale = nullptr;
  const T* output_scale = nullptr;
  const T* offset = nullptr;
  ConstTensorView output;

  explicit operator bool() const { return grad_scale != nullptr; }
};

/// The vectors of GradientSums for the channels of a tile; null: not wanted.
template <class T>
struct SumVectors {
  const T* mean = nullptr;
  T* grad = nullptr;
  T* grad_times_centered = nullptr;

  explicit operator bool() const { return grad != nullptr; }
};

// The passes below take patches and vectors by value: what is reached through a reference the compiler believes changed
// by every store, and loads again.

/// body(channel, position, positions left of the line) for every vector of a patch, in the order in which they lie in
/// memory: patches are often the tensors themselves, and only then does the hardware see what to fetch.
template <class Major, class Body>
HWY_INLINE void for_each_vector(Extent extent, Body body) {
  if constexpr (Major::kChannelMajor) {
    for (std::int64_t c = 0; c < extent.channels; ++c) {
      for (std::int64_t p = 0; p < extent.positions; p += Major::kPositions) body(c, p, extent.positions - p);
    }
  } else {
    for (std::int64_t p = 0; p < extent.positions; ++p) {
      for (std::int64_t c = 0; c < extent.channels; c += Major::kChannels) body(c, p, extent.positions - p);
    }
  }
}

/// Units of channels that a pass with sums walks side by side: independent sums, and longer runs of each position's
/// channels.
inline constexpr int kUnits = 4;

/// body.template operator()<n>(channel) for groups of kUnits units of channels, of two, and of one.
template <class Major, class Body>
HWY_INLINE void for_each_unit(std::int64_t channels, const Body& body) {
  constexpr std::int64_t kGroup = kUnits * Major::kChannels;
  std::int64_t c = 0;
  for (; c + kGroup <= channels; c += kGroup) body.template operator()<kUnits>(c);
  for (; c + 2 * Major::kChannels <= channels; c += 2 * Major::kChannels) body.template operator()<2>(c);
  for (; c < channels; c += Major::kChannels) body.template operator()<1>(c);
}

/// The coefficients of some units of channels, from `channel` on.
template <class Major, int kCount, class T>
struct Coefficients {
  Vec<T> of[kCount];

  HWY_INLINE Coefficients(const T* vector, std::int64_t channel) {
    HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) of[u] = Major::coefficient(vector, channel + u * Major::kChannels);
  }
};

/// to = activation(scale*from + shift) [+ residual]; `to` may be `from`.
template <class Major, class T>
void apply_epilogue(Patch<const T> from, AffineVectors<T> affine, Patch<const T> residual, Extent extent, Patch<T> to) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_vector<Major>(extent, [=](std::int64_t c, std::int64_t p, std::int64_t left) HWY_ATTR {
      const auto value = Major::load(Major::at(from, c, p), left);
      auto result = activate<kActivation, T>(
          hn::MulAdd(value, Major::coefficient(affine.scale, c), Major::coefficient(affine.shift, c)));
      if (residual.data != nullptr) result = hn::Add(result, Major::load(Major::at(residual, c, p), left));
      Major::store(result, Major::at(to, c, p), left);
    });
  });
}

/// to = grad_scale*grad + output_scale*output + offset; `to` may be `grad`.
template <class Major, class T>
void apply_gradient_prologue(Patch<const T> grad, Patch<const T> output, const GradientVectors<T>& prologue,
                             Extent extent, Patch<T> to) {
  const T *const grad_scale = prologue.grad_scale, *const output_scale = prologue.output_scale,
                 *const offset = prologue.offset;
  for_each_vector<Major>(extent, [=](std::int64_t c, std::int64_t p, std::int64_t left) HWY_ATTR {
    const auto from_output = hn::MulAdd(Major::load(Major::at(output, c, p), left), Major::coefficient(output_scale, c),
                                        Major::coefficient(offset, c));
    const auto value =
        hn::MulAdd(Major::load(Major::at(grad, c, p), left), Major::coefficient(grad_scale, c), from_output);
    Major::store(value, Major::at(to, c, p), left);
  });
}

/// Fills to[part.positions][pitch] from the output gradient, through the gradient prologue where there is one.
/// `scratch` holds as much; it is used where the raw output cannot be read in place.
template <class T>
void load_gradient(const ConstTensorView& grad, const TilePart& part, const GradientVectors<T>& prologue, T* to,
                   T* scratch) {
  using Major = PositionMajor<T>;
  if (!prologue) return load_tile<T>(grad, part, {}, to);
  const bool whole = part.channels % kLanes<T> == 0;
  const auto raw = read_patch<Major, T>(grad, part, whole && Major::is_readable(grad), to);
  const auto output =
      read_patch<Major, T>(prologue.output, part, whole && Major::is_readable(prologue.output), scratch);
  apply_gradient_prologue<Major, T>(raw, output, prologue, {part.positions, part.channels},
                                    {to, Major::pitch(part.positions, part.channels)});
}

/// sums[c..] += the vector's total.
template <class Major, class T>
HWY_INLINE void add_total(Vec<T> vector, T* sums, std::int64_t channel) {
  Major::put(hn::Add(Major::coefficient(sums, channel), Major::total(vector)), sums, channel);
}

/// grad *= activation'(scale*x + shift), stored unless const; adds what BatchNorm's backward needs of it to `sums`, and
/// writes the activation itself where `activated` says.
template <class Major, class T, class Grad>
void apply_activation_backward(Patch<Grad> grad, Patch<const T> x, AffineVectors<T> affine, SumVectors<T> sums,
                               Extent extent, Patch<T> activated = {}) {
  with_activation(affine.activation, [=]<Activation kActivation>() HWY_ATTR {
    for_each_unit<Major>(extent.channels, [=]<int kCount>(std::int64_t first) HWY_ATTR {
      const Coefficients<Major, kCount, T> scale(affine.scale, first), shift(affine.shift, first),
          mean(sums ? sums.mean : affine.shift, first);
      Vec<T> sum[kCount], sum_centered[kCount];
      HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) sum[u] = sum_centered[u] = hn::Zero(Tag<T>());
      // Also of the closure, where this is a function of its own.
      const Patch<Grad> to = grad;
      const Patch<const T> from = x;
      const Patch<T> activations = activated;
      const std::int64_t positions = extent.positions;
      for (std::int64_t p = 0; p < positions; p += Major::kPositions) {
        const std::int64_t left = positions - p;
        HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
          const std::int64_t c = first + u * Major::kChannels;
          const auto value = Major::load(Major::at(from, c, p), left);
          const auto z = hn::MulAdd(value, scale.of[u], shift.of[u]);
          const auto g = activate_backward<kActivation, T>(Major::load(Major::at(to, c, p), left), z);
          if (activations.data != nullptr) {
            Major::store(activate<kActivation, T>(z), Major::at(activations, c, p), left);
          }
          sum[u] = hn::Add(sum[u], g);
          sum_centered[u] = hn::MulAdd(g, hn::Sub(value, mean.of[u]), sum_centered[u]);
          if constexpr (!std::is_const_v<Grad>) Major::store(g, Major::at(to, c, p), left);
        }
      }
      for (int u = 0; sums && u < kCount; ++u) {
        add_total<Major>(sum[u], sums.grad, first + u * Major::kChannels);
        add_total<Major>(sum_centered[u], sums.grad_times_centered, first + u * Major::kChannels);
      }
    });
  });
}

/// to += from.
template <class Major, class T>
void add_patch(const Patch<const T>& from, const Extent& extent, const Patch<T>& to) {
  for_each_vector<Major>(extent, [&](std::int64_t c, std::int64_t p, std::int64_t left) HWY_ATTR {
    T* at = Major::at(to, c, p);
    Major::store(hn::Add(Major::load(Major::at(from, c, p), left), Major::load(at, left)), at, left);
  });
}

/// to += from, element by element, `count` a multiple of a vector.
template <class T>
void add_in_place(T* to, const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>)
    store_as<T>(hn::Add(load_as<T>(to + i), load_as<T>(from + i)), to + i);
}

/// The sums of some units of channels over positions [begin, end).
template <class Major, int kCount, class T>
HWY_INLINE void sum_positions(const Patch<const T>& from, std::int64_t first, std::int64_t begin, std::int64_t end,
                              Vec<T> (&sum)[kCount]) {
  HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) sum[u] = hn::Zero(Tag<T>());
  for (std::int64_t p = begin; p < end; p += Major::kPositions) {
    HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
      sum[u] = hn::Add(sum[u], Major::load(Major::at(from, first + u * Major::kChannels, p), end - p));
    }
  }
}

/// sums[c] += the sum of channel c.
template <class Major, class T>
void add_channel_sums(const Patch<const T>& from, const Extent& extent, T* sums) {
  for_each_unit<Major>(extent.channels, [&]<int kCount>(std::int64_t first) HWY_ATTR {
    Vec<T> sum[kCount];
    sum_positions<Major, kCount, T>(from, first, 0, extent.positions, sum);
    for (int u = 0; u < kCount; ++u) add_total<Major>(sum[u], sums, first + u * Major::kChannels);
  });
}

/// Adds the positions [begin, end) of some units of channels to their running moments.
template <class Major, int kCount, class T>
HWY_INLINE void merge_positions(const Patch<const T>& patch, std::int64_t first, std::int64_t begin, std::int64_t end,
                                const MergeWeights<T>& weights, Moments<T>& moments) {
  const Tag<T> d;
  const auto inverse = hn::Set(d, T(1) / static_cast<T>(end - begin));
  Vec<T> mean[kCount], m2[kCount];
  sum_positions<Major, kCount, T>(patch, first, begin, end, mean);
  HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
    mean[u] = hn::Mul(Major::total(mean[u]), inverse);
    m2[u] = hn::Zero(d);
  }
  for (std::int64_t p = begin; p < end; p += Major::kPositions) {
    const std::int64_t left = end - p;
    HWY_UNROLL(4) for (int u = 0; u < kCount; ++u) {
      const auto value = Major::load(Major::at(patch, first + u * Major::kChannels, p), left);
      const auto deviation = Major::zero_behind(hn::Sub(value, mean[u]), left);
      m2[u] = hn::MulAdd(deviation, deviation, m2[u]);
    }
  }
  for (int u = 0; u < kCount; ++u) {
    const std::int64_t c = first + u * Major::kChannels;
    const auto old = Major::coefficient(moments.mean, c);
    const auto delta = hn::Sub(mean[u], old);
    const auto spread = hn::MulAdd(hn::Mul(delta, delta), hn::Set(d, weights.m2), Major::total(m2[u]));
    Major::put(hn::MulAdd(delta, hn::Set(d, weights.mean), old), moments.mean, c);
    Major::put(hn::Add(Major::coefficient(moments.m2, c), spread), moments.m2, c);
  }
}

/// Adds a patch to the running moments of its channels, so many positions at a time that the second look at them finds
/// them in the first-level cache.
template <class Major, class T>
void add_moments(const Patch<const T>& patch, const Extent& extent, Moments<T>& moments) {
  constexpr std::int64_t kPositions = 64 * Major::kPositions;
  for (std::int64_t begin = 0; begin < extent.positions; begin += kPositions) {
    const std::int64_t end = std::min(begin + kPositions, extent.positions);
    const MergeWeights<T> weights(moments.count, end - begin);
    for_each_unit<Major>(extent.channels, [&]<int kCount>(std::int64_t first) HWY_ATTR {
      merge_positions<Major, kCount, T>(patch, first, begin, end, weights, moments);
    });
    moments.count += end - begin;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
