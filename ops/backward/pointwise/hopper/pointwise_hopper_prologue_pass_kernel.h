/// Pointwise convolution on Hopper GPUs, backward: each of the prologues as a pass of its own. Of many channels on the
/// other side each element is used so often that it is worth one.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"

namespace fusedsc::gpu::hopper {

/// activation(scale*x + shift), or scale*x + other_scale*other + shift.
struct ProloguePassParameters {
  const void *x = nullptr, *other = nullptr;
  void* to = nullptr;                     ///< dense
  std::int64_t x_row = 0, other_row = 0;  ///< from a position to the next
  const float *scale = nullptr, *other_scale = nullptr, *shift = nullptr;
  Activation activation = Activation::identity;
  int pixels = 0, runs = 0;  ///< runs of 16 bytes of channels
  int rows = 1;              ///< positions that a block takes at once: threads are runs * rows
};

/// Of so many neighbouring channels, whose number is a multiple of four. As single numbers they are eight lines of the
/// cache for each load of a warp.
template <int kCount>
FUSEDSC_DEVICE void read_vector(const float* vector, int channel, float otherwise, float (&to)[kCount]) {
  if (vector != nullptr && reinterpret_cast<std::uintptr_t>(vector) % 16 == 0) {
#pragma unroll
    for (int v = 0; v < kCount; v += 4) {
      const auto four = *reinterpret_cast<const Aligned<float, 4>*>(vector + channel + v);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[v + i] = four.elements[i];
    }
  } else {
#pragma unroll
    for (int v = 0; v < kCount; ++v) to[v] = value_or(vector, channel + v, otherwise);
  }
}

template <class T, bool kHasOther>
FUSEDSC_DEVICE void apply_prologue_pass(const ProloguePassParameters& p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  constexpr int kRun = 16 / static_cast<int>(sizeof(T)), kAtOnce = kHasOther ? 2 : 4;  ///< loads under way
  const int channel = thread_index() % p.runs * kRun;
  float scale[kRun], other_scale[kRun], shift[kRun];
  read_vector(p.scale, channel, 1.0f, scale);
  if constexpr (kHasOther) read_vector(p.other_scale, channel, 0.0f, other_scale);
  read_vector(p.shift, channel, 0.0f, shift);
  const int step = static_cast<int>(block_count()) * p.rows;
#pragma unroll 1
  for (int first = static_cast<int>(block_index()) * p.rows + thread_index() / p.runs; first < p.pixels;
       first += kAtOnce * step) {
    Vector<T, kRun> x[kAtOnce], other[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pixel = first + i * step < p.pixels ? first + i * step : first;
      x[i] = load<kRun>(static_cast<const T*>(p.x) + pixel * p.x_row + channel);
      if constexpr (kHasOther) other[i] = load<kRun>(static_cast<const T*>(p.other) + pixel * p.other_row + channel);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pixel = first + i * step;
      if (pixel >= p.pixels) break;
      float values[kRun], others[kRun];
      x[i].widen(values);
      if constexpr (kHasOther) other[i].widen(others);
#pragma unroll
      for (int v = 0; v < kRun; ++v) {
        values[v] = values[v] * scale[v] + (kHasOther ? others[v] * other_scale[v] + shift[v] : shift[v]);
      }
      if constexpr (!kHasOther) activate(p.activation, values);
      store<kRun>(values, static_cast<T*>(p.to) + (std::int64_t{pixel} * p.runs * kRun + channel));
    }
  }
}

}  // namespace fusedsc::gpu::hopper
