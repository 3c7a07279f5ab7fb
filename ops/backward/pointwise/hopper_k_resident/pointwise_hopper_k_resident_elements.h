/// What a thread of PointwiseGradients (pointwise_hopper_k_resident_kernel.h) does to elements: the gradient of x goes
/// from its registers to a tile, by way of the activation's gradient, and x is activated.
#pragma once

#include "fusedsc/backward/pointwise/hopper_k_resident/pointwise_hopper_k_resident_weight.h"
#include "fusedsc/common/gpu/activation.h"

namespace fusedsc::gpu::hopper {

template <class Block>
class PointwiseGradientsElements : public PointwiseGradientsWeight<Block> {
 protected:
  using Weight = PointwiseGradientsWeight<Block>;
  using typename Weight::T;
  using Weight::first_column_, Weight::p_, Weight::share_, Weight::unscale_, Weight::vectors;
  using Weight::kChannels, Weight::kDepth, Weight::kHasOutput, Weight::kParts, Weight::kRows, Weight::kWide;
  using Weight::lane, Weight::warp;

  using Weight::Weight;

  /// Columns of the second product, of grad_y and of output, which lie side by side; at most 192 at once.
  static constexpr int kAll = kParts * kDepth, kFirst = kAll <= 192 ? kAll : kAll % 128 == 0 ? 128 : 192;
  static_assert(kParts == 1 || kDepth % kWide == 0);
  static_assert(kAll == kFirst || (kFirst % kWide == 0 && kAll - kFirst <= 192));
  using Grad = float[kRows / 2];                   ///< of x: a lane's two channels by pairs of positions
  using Activated = std::uint32_t[kRows / 16][4];  ///< likewise, as products take them
  /// Threads read x while the first product runs, where there are registers for both.
  static constexpr bool kLoadsAhead = kAll <= 192;
  struct Sums {
    float products[kAll / 2];  ///< of a and grad_y, and of a and output
    // Of two channels; and of a.
    float grad[2], grad_times_centered[2], activated[2];
  };
  /// Of a lane's two channels.
  struct Channels {
    float scale[2] = {1, 1}, shift[2] = {}, mean[2] = {}, constant[2] = {};
  };

  FUSEDSC_DEVICE Channels own_channels() const {
    Channels own;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = share_ * kChannels + warp() * 16 + lane() / 4 + 8 * i;
      const int channel = p_.fold == 1 ? first_column_ + column : column % p_.channels;
      if (channel >= p_.channels) continue;
      if (p_.scale != nullptr) own.scale[i] = p_.scale[channel];
      if (p_.shift != nullptr) own.shift[i] = p_.shift[channel];
      if (p_.mean != nullptr) own.mean[i] = p_.mean[channel];
      if (kHasOutput) own.constant[i] = vectors()[column];
    }
    return own;
  }

  /// Where, in a tile, the lane's row of the matrices lies that are the warp's channels of 16 positions.
  FUSEDSC_DEVICE static int place_of_step(int step) {
    return place_of_run<128>(step * 16 + lane() / 16 * 8 + lane() % 8, warp() * 2 + lane() / 8 % 2);
  }

  /// The gradient of x, to its tile.
  FUSEDSC_DEVICE static void store_tile(const Grad& grad, unsigned char* to) {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = to_bits(grad[step * 8 + 2 * i], grad[step * 8 + 2 * i + 1], T());
      store_matrices<true>(to + place_of_step(step), words);
    }
  }

  FUSEDSC_DEVICE void finish_tile(Sums& sums, const Channels& own, const Grad& grad, Activated& activated,
                                  const unsigned char* x, unsigned char* to, int rows) const {
    switch (p_.activation) {
      case Activation::relu6: return finish_tile<Activation::relu6>(sums, own, grad, activated, x, to, rows);
      case Activation::relu: return finish_tile<Activation::relu>(sums, own, grad, activated, x, to, rows);
      case Activation::identity: return finish_tile<Activation::identity>(sums, own, grad, activated, x, to, rows);
      default: return finish_tile<Activation::silu>(sums, own, grad, activated, x, to, rows);
    }
  }
  template <Activation kActivation>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, const Channels& own, const Grad& grad, Activated& activated,
                                  const unsigned char* x, unsigned char* to, int rows) const {
    if (!kHasOutput || rows >= kRows) finish_tile<kActivation, true>(sums, own, grad, activated, x, to, rows);
    else finish_tile<kActivation, false>(sums, own, grad, activated, x, to, rows);
  }

  FUSEDSC_DEVICE static void load(Activated& x, const unsigned char* from) {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) load_matrices<true>(from + place_of_step(step), x[step]);
  }

  /// There are so many rows. Of others grad_y is zero, but activated x is not.
  FUSEDSC_DEVICE static void clear(Activated& activated, int rows) {
#pragma unroll
    for (int i = 0; i < kRows / 4; ++i) {
      const int row = i / 2 * 8 + lane() % 4 * 2;
      std::uint32_t& word = activated[i / 4][i % 4];
      if (row >= rows) word = 0;
      else if (row + 1 >= rows) word &= 0xffff;
    }
  }

  /// x is activated, the gradient goes to its tile. There are so many rows; kAllRows: all of the tile, or there is no
  /// gradient prologue, so that the gradient of others is zero.
  template <Activation kActivation, bool kAllRows>
  FUSEDSC_DEVICE void finish_tile(Sums& sums, const Channels& own, const Grad& grad, Activated& activated,
                                  const unsigned char* x, unsigned char* to, int rows) const {
#pragma unroll
    for (int step = 0; step < kRows / 16; ++step) {
      const int place = place_of_step(step);
      std::uint32_t(&words)[4] = activated[step];
      if constexpr (!kLoadsAhead) load_matrices<true>(x + place, words);
      std::uint32_t gradients[4];
#pragma unroll
      for (int part = 0; part < 4; part += 2) {  // two positions of both channels
        float values[4], z[4], g[4];
        bool exists[4];
        to_floats(words[part], values[0], values[1], T());
        to_floats(words[part + 1], values[2], values[3], T());
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          exists[i] = kAllRows || step * 16 + part * 4 + lane() % 4 * 2 + i % 2 < rows;
          z[i] = values[i] * own.scale[i / 2] + own.shift[i / 2];
          g[i] = grad[step * 8 + part * 2 + i];
          if (kHasOutput) g[i] = g[i] * unscale_ + own.constant[i / 2];
        }
        if constexpr (kActivation == Activation::silu) activate_backward(p_.activation, z, g);
        else activate_backward(kActivation, z, g);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!exists[i]) g[i] = 0;
          sums.grad[i / 2] += g[i];
          sums.grad_times_centered[i / 2] += g[i] * (values[i] - own.mean[i / 2]);
        }
        if constexpr (kActivation == Activation::silu) activate(p_.activation, z);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          std::uint32_t& word = words[part + i];
          gradients[part + i] = to_bits(g[2 * i], g[2 * i + 1], T());
          word = to_bits(exists[2 * i] ? z[2 * i] : 0.0f, exists[2 * i + 1] ? z[2 * i + 1] : 0.0f, T());
          // Rounding keeps the order, and both bounds: clamped pairs are the same, for half the instructions.
          if (kActivation == Activation::relu || kActivation == Activation::relu6) {
            word = clamped_pair(word, kActivation == Activation::relu6, T());
          }
          if constexpr (kHasOutput) {
            float a[2];
            to_floats(word, a[0], a[1], T());
            sums.activated[i] += a[0] + a[1];
          }
        }
      }
      store_matrices<true>(to + place, gradients);
    }
  }
};

}  // namespace fusedsc::gpu::hopper
