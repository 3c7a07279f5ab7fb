/// What happens to the finished outputs of depthwise kernels of patches for Hopper GPUs: into the tile that leaves.
#pragma once

#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_parameters.h"
#include "fusedsc/forward/depthwise/rows/depthwise_window_sum.h"

namespace fusedsc::gpu::hopper {

/// Of a warp's channels; of these a thread has all, at two positions: one of each half of a product's patches.
template <class T, class Window, int kPairs = 4>
class DepthwisePatchesOutputs {
 public:
  /// Pairs of channels: of a pair both at one position, then both at the other.
  using Values = float[kPairs][4];

  int channel = 0;      ///< of the warp, the first
  int first_image = 0;  ///< of the warp, in a tile

  FUSEDSC_DEVICE explicit DepthwisePatchesOutputs(const DepthwisePatchesParameters& p) : p_(p) {}

  /// place: of the thread's first position in a row of a tile. Returns what keep_order is to be told.
  FUSEDSC_DEVICE std::uint32_t aim(int place) {
    places_[0] = position(0).column < p_.out_pitch ? place : kNowhere;
    places_[1] = position(1).column < p_.out_pitch ? place + p_.out_half_bytes : kNowhere;
    return static_cast<std::uint32_t>((places_[0] | places_[1]) & 0x7fffffff);
  }

  /// When the kernel before has ended. A vector of channels is aligned to its elements only.
  FUSEDSC_DEVICE void load_bias() {
    if constexpr (kTakesBias) {
      const bool exists = p_.bias != nullptr && channel < p_.channels;
      const T* const from = static_cast<const T*>(p_.bias) + (exists ? channel : 0);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        bias_[pair] = exists ? from[2 * pair].bits | std::uint32_t{from[2 * pair + 1].bits} << 16 : 0;
      }
    }
  }

  FUSEDSC_DEVICE void begin_tile(const DepthwiseTileNote& at) { at_ = &at; }

  /// Of row `row` of the image.
  FUSEDSC_DEVICE void finish(unsigned char* out, int row, const Values& y) const {
    float any = 0;  // what is not finite in one output is in all of its patch, of both channels
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) any += y[pair][0] + y[pair][2];
    const bool is_whole = !any_of_warp(!is_finite(any));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (places_[half] == kNowhere) continue;
      Aligned<std::uint32_t, kPairs> run;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float outputs[2] = {y[pair][2 * half], y[pair][2 * half + 1]};
        if constexpr (kTakesBias) {
          float bias[2];
          to_floats(bias_[pair], bias[0], bias[1], T());
          outputs[0] += bias[0];
          outputs[1] += bias[1];
        }
        run.elements[pair] = to_bits(outputs[0], outputs[1], T());
      }
      *reinterpret_cast<Aligned<std::uint32_t, kPairs>*>(out + places_[half]) = run;
    }
    if (!is_whole) compute_again(out, row);
  }

 private:
  static constexpr int kNowhere = -1;
  static constexpr bool kTakesBias = patches_take_bias(Window::kKernel);

  struct Position {
    int image, column;
  };
  /// Of the thread, of one half of the patches or the other, from the tile's first on.
  FUSEDSC_DEVICE Position position(int half) const {
    const int lane = thread_index() % 32, g = lane / 4, column = 4 * (g % p_.image_lines) + lane % 4;
    if (p_.image_lines == 16) return {first_image, column + 32 * half};
    return {first_image + (g + 8 * half) / p_.image_lines, column};
  }

  FUSEDSC_DEVICE int place_of(int half) const { return half == 0 ? places_[0] : places_[1]; }

  /// What the taps of an output see.
  struct Taps {
    int row, column, padding_top, padding_left;

    FUSEDSC_DEVICE int input_row(int kh) const { return Window::input(row, kh, padding_top); }
    FUSEDSC_DEVICE int input_column(int kw) const { return Window::input(column, kw, padding_left); }
  };
  using Sum = DepthwiseWindowSum<T, Window::kKernel, Taps>;
  FUSEDSC_DEVICE Sum window_of(int image, int row, int column) const {
    const Taps taps{row, column, p_.padding_top, p_.padding_left};
    return Sum(p_.raw_x, p_.weight, image, p_.input_height, p_.input_width, taps);
  }

  /// Where zeros of the other operand have made NaNs: pairs of channels whose outputs do not see one, each from its own
  /// channels. At once to where they belong: the others need their registers.
  FUSEDSC_DEVICE void compute_again(unsigned char* out, int row) const {
    const Position first{read_entry(at_->image), read_entry(at_->column)};
    if (channel >= p_.channels) return;
    std::uint32_t in_doubt = 0;  // bit kPairs * half + pair
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const Position at = position(half);
      const int image = first.image + at.image, column = first.column + at.column;
      if (place_of(half) == kNowhere || image >= p_.batch || column >= p_.output_width) continue;
      const Vector<T, 2 *kPairs> seen = window_of(image, row, column).template read_one<2 * kPairs>(channel),
                                 own = load<2 * kPairs>(reinterpret_cast<const T*>(out + place_of(half)));
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float output[2], input[2];
        to_floats(own.words[pair], output[0], output[1], T());
        to_floats(seen.words[pair], input[0], input[1], T());
        const bool is_one = is_in_doubt(output[0], input[0]) || is_in_doubt(output[1], input[1]);
        in_doubt |= is_one ? 1u << (kPairs * half + pair) : 0u;
      }
    }
#pragma unroll 1
    for (int i = 0; i < 2 * kPairs; ++i) {
      if ((in_doubt >> i & 1) == 0) continue;
      const int half = i / kPairs, pair = i % kPairs;
      const Position at = position(half);
      float sums[2] = {};  // not from bias_: registers cannot be found by a number
      if constexpr (kTakesBias) load_channels(p_.bias, channel + 2 * pair, 0.0f, sums, T());
      window_of(first.image + at.image, row, first.column + at.column)
          .template add_to<Window::kKernel>(sums, channel + 2 * pair, [](float(&)[2]) {});
      store<2>(sums, reinterpret_cast<T*>(out + place_of(half)) + 2 * pair);
    }
  }

  const DepthwisePatchesParameters& p_;
  int places_[2];                          ///< of the thread's positions, in a row of a tile of outputs
  const DepthwiseTileNote* at_ = nullptr;  ///< the tile
  std::uint32_t bias_[kTakesBias ? kPairs : 1];
};

}  // namespace fusedsc::gpu::hopper
