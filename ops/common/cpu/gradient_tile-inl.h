/// BatchNorm's and the activation's backward on tiles: the gradient prologue where an output gradient is loaded, the
/// activation's derivative and the sums where an input gradient is finished.

// NOLINTBEGIN(llvm-header-guard)
#if defined(FUSEDSC_COMMON_CPU_GRADIENT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FUSEDSC_COMMON_CPU_GRADIENT_TILE_INL_H_
#undef FUSEDSC_COMMON_CPU_GRADIENT_TILE_INL_H_
#else
#define FUSEDSC_COMMON_CPU_GRADIENT_TILE_INL_H_
#endif
// NOLINTEND(llvm-header-guard)

#include "fusedsc/common/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

/// A GradientPrologue's vectors for the channels of a tile, padded with zeros to whole vectors.
template <class T>
struct GradientVectors {
  const T* grad_scale = nullptr;
  const T* output_scale = nullptr;
  const T* offset = nullptr;
  ConstTensorView output;

  explicit operator bool() const { return grad_scale != nullptr; }
};

/// grad = grad_scale*grad + output_scale*output + offset in place: tiles [positions][channels], whole vectors.
template <class T>
void batch_norm_backward_tile(T* grad, const T* output, std::int64_t output_pitch, std::int64_t positions,
                              std::int64_t channels, const GradientVectors<T>& prologue) {
  for (std::int64_t p = 0; p < positions; ++p, grad += channels, output += output_pitch) {
    for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
      const auto from_output =
          hn::MulAdd(load_as<T>(output + c), load_as<T>(prologue.output_scale + c), load_as<T>(prologue.offset + c));
      store_as<T>(hn::MulAdd(load_as<T>(grad + c), load_as<T>(prologue.grad_scale + c), from_output), grad + c);
    }
  }
}

/// Fills tile[part.positions][pitch] from the output gradient, through the gradient prologue where there is one.
/// `scratch` holds as much as the tile; it is used where the raw output cannot be read in place.
template <class T>
void load_gradient_tile(const ConstTensorView& grad, const TilePart& part, const GradientVectors<T>& prologue, T* tile,
                        T* scratch) {
  load_tile<T>(grad, part, {}, tile);
  if (!prologue) return;
  const std::int64_t pitch = round_up(part.channels, kLanes<T>);
  const T* output = scratch;
  std::int64_t output_pitch = pitch;
  if (is_tile<T>(prologue.output) && part.channels % kLanes<T> == 0) {
    output = element<T>(prologue.output, part.image, part.channel, part.row, part.column);
    output_pitch = prologue.output.strides[3];
  } else {
    load_tile<T>(prologue.output, part, {}, scratch);
  }
  batch_norm_backward_tile<T>(tile, output, output_pitch, part.positions, pitch, prologue);
}

/// The vectors of GradientSums for the channels of a tile; null: not wanted.
template <class T>
struct SumVectors {
  const T* mean = nullptr;
  T* grad = nullptr;
  T* grad_times_centered = nullptr;

  explicit operator bool() const { return grad != nullptr; }
};

/// grad *= activation'(scale*x + shift) in place, and the sums of the result. Pitches are between neighbouring
/// positions.
template <class T>
void activation_backward_tile(T* grad, std::int64_t grad_pitch, const T* x, std::int64_t x_pitch,
                              std::int64_t positions, std::int64_t channels, const AffineVectors<T>& affine,
                              const SumVectors<T>& sums) {
  const Tag<T> d;
  with_activation(affine.activation, [&]<Activation kActivation>() HWY_ATTR {
    for (std::int64_t c = 0; c < channels; c += kLanes<T>) {
      const auto scale = load_as<T>(affine.scale + c), shift = load_as<T>(affine.shift + c);
      const auto mean = sums ? load_as<T>(sums.mean + c) : hn::Zero(d);
      auto sum = hn::Zero(d), sum_centered = hn::Zero(d);
      for (std::int64_t p = 0; p < positions; ++p) {
        const auto value = load_as<T>(x + p * x_pitch + c);
        const auto g =
            activate_backward<kActivation, T>(load_as<T>(grad + p * grad_pitch + c), hn::MulAdd(value, scale, shift));
        store_as<T>(g, grad + p * grad_pitch + c);
        sum = hn::Add(sum, g);
        sum_centered = hn::MulAdd(g, hn::Sub(value, mean), sum_centered);
      }
      if (!sums) continue;
      store_as<T>(hn::Add(load_as<T>(sums.grad + c), sum), sums.grad + c);
      store_as<T>(hn::Add(load_as<T>(sums.grad_times_centered + c), sum_centered), sums.grad_times_centered + c);
    }
  });
}

/// to += from, element by element, `count` a multiple of a vector.
template <class T>
void add_in_place(T* to, const T* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>)
    store_as<T>(hn::Add(load_as<T>(to + i), load_as<T>(from + i)), to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#endif
