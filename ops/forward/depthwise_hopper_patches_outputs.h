/// What happens to the finished outputs of depthwise kernels of patches for Hopper GPUs: into the tile that leaves.
#pragma once

#include <limits>

#include "fusedsc/forward/depthwise_hopper_patches_parameters.h"

namespace fusedsc::gpu::hopper {

/// Of a warp's 8 channels; of these a thread has all, at two positions: one of each half of a product's patches.
template <class T, class Window>
class DepthwisePatchesOutputs {
 public:
  /// Four pairs of channels: of a pair both at one position, then both at the other.
  using Values = float[4][4];

  int channel = 0;      ///< of the warp, the first
  int first_image = 0;  ///< of the warp, in a tile

  FUSEDSC_DEVICE explicit DepthwisePatchesOutputs(const DepthwisePatchesParameters& p) : p_(p) {}

  /// place: of the thread's first position in a row of a tile. Returns what keep_order is to be told.
  FUSEDSC_DEVICE std::uint32_t aim(int place) {
    places_[0] = position(0).column < p_.out_pitch ? place : kNowhere;
    places_[1] = position(1).column < p_.out_pitch ? place + p_.out_half_bytes : kNowhere;
    return static_cast<std::uint32_t>((places_[0] | places_[1]) & 0x7fffffff);
  }

  FUSEDSC_DEVICE void begin_tile(const DepthwiseTileNote& at) { at_ = &at; }

  /// Of row `row` of the image.
  FUSEDSC_DEVICE void finish(unsigned char* out, int row, const Values& y) const {
    float any = 0;  // what is not finite in one output is in all of its patch, of both channels
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) any += y[pair][0] + y[pair][2];
    const bool is_whole = !any_of_warp(!(fabsf(any) <= kMost));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (places_[half] == kNowhere) continue;
      Aligned<std::uint32_t, 4> run;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) run.elements[pair] = to_bits(y[pair][2 * half], y[pair][2 * half + 1], T());
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(out + places_[half]) = run;
    }
    if (!is_whole) compute_again(out, row);
  }

 private:
  static constexpr int kNowhere = -1;
  static constexpr float kMost = std::numeric_limits<float>::max();

  struct Position {
    int image, column;
  };
  /// Of the thread, of one half of the patches or the other, from the tile's first on.
  FUSEDSC_DEVICE Position position(int half) const {
    const int lane = thread_index() % 32, g = lane / 4, column = 4 * (g % p_.image_lines) + lane % 4;
    if (p_.image_lines == 16) return {first_image, column + 32 * half};
    return {first_image + (g + 8 * half) / p_.image_lines, column};
  }

  /// Rarely: what zeros of the other operand have made a NaN of, element by element from x, each from its own channel.
  /// At once to where they belong: the others need their registers.
  FUSEDSC_DEVICE void compute_again(unsigned char* out, int row) const {
    const Position first{read_entry(at_->image), read_entry(at_->column)};
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int half = i / 8, place = half == 0 ? places_[0] : places_[1];
      const Position at = position(half);
      const float sum = window_sum({first.image + at.image, first.column + at.column}, channel + i % 8, row);
      if (place != kNowhere) from_accumulator(sum, reinterpret_cast<T*>(out + place)[i % 8]);
    }
  }

  FUSEDSC_DEVICE float window_sum(const Position& at, int c, int row) const {
    if (at.image >= p_.batch || c >= p_.channels || at.column >= p_.output_width) return 0;
    float sum = 0;
#pragma unroll 1
    for (int kh = 0; kh < Window::kKernel; ++kh) {
      const int h = Window::input(row, kh, p_.padding_top);
      if (h < 0 || h >= p_.input_height) continue;
#pragma unroll 1
      for (int kw = 0; kw < Window::kKernel; ++kw) {
        const int w = Window::input(at.column, kw, p_.padding_left);
        if (w < 0 || w >= p_.input_width) continue;
        sum += to_accumulator(elements_of<T>(p_.raw_x)[p_.raw_x.offset(at.image, c, h, w)]) *
               to_accumulator(elements_of<T>(p_.weight)[p_.weight.offset(c, 0, kh, kw)]);
      }
    }
    return sum;
  }

  const DepthwisePatchesParameters& p_;
  int places_[2];                          ///< of the thread's positions, in a row of a tile of outputs
  const DepthwiseTileNote* at_ = nullptr;  ///< the tile
};

}  // namespace fusedsc::gpu::hopper
