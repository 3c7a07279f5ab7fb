/// What happens to the finished outputs of the depthwise forward kernel for Hopper GPUs: statistics or an epilogue, and
/// into the tile that leaves.
#pragma once

#include <limits>

#include "fusedsc/common/gpu/moments.h"
#include "fusedsc/forward/depthwise_hopper_prologue.h"

namespace fusedsc::gpu::hopper {

/// Of a warp's 8 channels; of these a thread has all, at two positions: one of each half of a product's patches.
template <class T, class Window, DepthwiseSeams kSeams>
class DepthwiseTileOutputs {
 public:
  struct Row {
    int row;
    int valid;      ///< which of the thread's positions exist there: bit per half
    bool is_first;  ///< that exists
  };
  /// Four pairs of channels: of a pair both at one position, then both at the other.
  using Values = float[4][4];

  int channel = 0;      ///< of the warp, the first
  int first_image = 0;  ///< of the warp, in a tile
  const DepthwiseChannels* channels = nullptr;

  FUSEDSC_DEVICE explicit DepthwiseTileOutputs(const DepthwiseTilesParameters& p) : p_(p) {}

  /// place: of the thread's first position in a row of a tile.
  FUSEDSC_DEVICE void aim(int place) {
    places_[0] = position(0).column < p_.out_pitch ? place : kNowhere;
    places_[1] = position(1).column < p_.out_pitch ? place + p_.out_half_bytes : kNowhere;
  }

  /// Of the piece's row `row`, if it is one.
  FUSEDSC_DEVICE Row row_of(int row, bool exists) {
    const Row result{row, exists ? valid_ : 0, exists && !has_pivot_};
    has_pivot_ |= exists;
    return result;
  }

  FUSEDSC_DEVICE void begin_tile(const DepthwiseTileNote& at) {
    at_ = &at;
    if (!at.is_first) return;
    if constexpr (kSeams != DepthwiseSeams::none) {
      const auto exists = [&](const Position& of_tile) {
        return of_tile.column < p_.tile_columns && at.column + of_tile.column < p_.output_width &&
               at.image + of_tile.image < p_.batch;
      };
      valid_ = (exists(position(0)) ? 1 : 0) | (exists(position(1)) ? 2 : 0);
      if constexpr (kSeams == DepthwiseSeams::training) {
        moments_.count += static_cast<float>(((valid_ & 1) + (valid_ >> 1)) * (at.end - at.begin));
      }
    }
  }

  FUSEDSC_DEVICE void finish(unsigned char* out, const Row& row, Values& y, const DepthwiseTilePrologue<T>& prologue) {
    float any = 0;  // what is not finite in one output is in all of its patch, of both channels
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) any += y[pair][0] + y[pair][2];
    const bool is_whole = !any_of_warp(!(fabsf(any) <= kMost));
    if constexpr (kSeams != DepthwiseSeams::none) {
      if (p_.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < 16; ++i) y[i / 4][i % 4] += channels->bias[i / 4 * 2 + i % 2];
      }
      if (!is_whole) {
        again(row, prologue, [&](int i, float sum) {
#pragma unroll
          for (int j = 0; j < 16; ++j) y[j / 4][j % 4] = i == j ? sum : y[j / 4][j % 4];
        });
      }
      if constexpr (kSeams == DepthwiseSeams::training) take_statistics(row, y);
      if constexpr (kSeams == DepthwiseSeams::all) apply_epilogue(row, y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (places_[half] == kNowhere) continue;
      Aligned<std::uint32_t, 4> run;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) run.elements[pair] = to_bits(y[pair][2 * half], y[pair][2 * half + 1], T());
      *reinterpret_cast<Aligned<std::uint32_t, 4>*>(out + places_[half]) = run;
    }
    if constexpr (kSeams == DepthwiseSeams::none) {  // at once to where they belong: they need no registers then
      if (!is_whole) {
        again(row, prologue, [&](int i, float sum) {
          const int place = i / 2 % 2 == 0 ? places_[0] : places_[1];
          if (place != kNowhere) from_accumulator(sum, reinterpret_cast<T*>(out + place)[i / 4 * 2 + i % 2]);
        });
      }
    }
  }

  /// Of the block: the lanes of a warp, then the warps with the same channels.
  FUSEDSC_DEVICE void leave_statistics(unsigned char* block_tiles, int warp, int split, int first_channel) const {
    if (p_.partials == nullptr) return;
    block_barrier();  // tiles were where the moments shall be
    auto* memory = reinterpret_cast<float*>(block_tiles);
    const int lane = thread_index() % 32, runs = p_.runs();
    if (warp < p_.warps()) {
      float count = moments_.count, mean[8], m2[8];
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        mean[v] = moments_.mean(v);
        m2[v] = moments_.m2(v);
      }
      // Of half as many channels each time, until a lane has one.
#pragma unroll
      for (int left = 4, mask = 16; mask > 0; left /= 2, mask /= 2) {
        const float other_count = shuffle_xor(count, mask);
        float total = count;
#pragma unroll
        for (int v = 0; v < (left > 0 ? left : 1); ++v) {
          float own_mean = mean[v], own_m2 = m2[v], given_mean = mean[v], given_m2 = m2[v];
          if (left > 0) {
            const bool upper = (lane & mask) != 0;
            own_mean = upper ? mean[v + left] : mean[v];
            own_m2 = upper ? m2[v + left] : m2[v];
            given_mean = upper ? mean[v] : mean[v + left];
            given_m2 = upper ? m2[v] : m2[v + left];
          }
          const float other_mean = shuffle_xor(given_mean, mask), other_m2 = shuffle_xor(given_m2, mask);
          total = count;
          merge_moments(total, own_mean, own_m2, other_count, other_mean, other_m2);
          mean[v] = own_mean;
          m2[v] = own_m2;
        }
        count = total;
      }
      if (lane % 4 == 0) {
        float* to = memory + (warp * 8 + lane / 4) * 3;
        to[0] = mean[0];
        to[1] = m2[0];
        to[2] = count;
      }
    }
    block_barrier();
    const int channel = first_channel + thread_index();
    if (thread_index() >= runs * 8 || channel >= p_.channels) return;
    const float* from = memory + thread_index() * 3;
    float mean = from[0], m2 = from[1], count = from[2];
    for (int part = 1; part < p_.image_parts; ++part) {
      const float* other = from + part * runs * 24;
      merge_moments(count, mean, m2, other[2], other[0], other[1]);
    }
    float* row = p_.partials + static_cast<std::int64_t>(split) * 3 * p_.channels + channel;
    row[0] = mean;
    row[p_.channels] = m2;
    row[2 * p_.channels] = count;
  }

 private:
  static constexpr int kNowhere = -1;
  static constexpr float kMost = std::numeric_limits<float>::max();

  struct Position {
    int image, column;  ///< from the tile's first
  };
  /// Of the thread, of one half of the patches or the other.
  FUSEDSC_DEVICE Position position(int half) const {
    const int lane = thread_index() % 32, g = lane / 4, column = 4 * (g % p_.image_lines) + lane % 4;
    if (p_.image_lines == 16) return {first_image, column + 32 * half};
    return {first_image + (g + 8 * half) / p_.image_lines, column};
  }

  /// Rarely: what zeros of the other operand have made a NaN of, element by element from x, each from its own channel.
  template <class Put>
  FUSEDSC_DEVICE void again(const Row& row, const DepthwiseTilePrologue<T>& prologue, const Put& put) const {
#pragma unroll 1
    for (int i = 0; i < 16; ++i) put(i, window_sum(position(i / 2 % 2), i / 4 * 2 + i % 2, row.row, prologue));
  }

  FUSEDSC_DEVICE float window_sum(const Position& of_tile, int warp_channel, int row,
                                  const DepthwiseTilePrologue<T>& prologue) const {
    const int c = channel + warp_channel, image = at_->image + of_tile.image,
              column = at_->column + of_tile.column;
    if (image >= p_.batch || c >= p_.channels || column >= p_.output_width) return 0;
    float sum = kSeams == DepthwiseSeams::none ? 0.0f : channels->bias[warp_channel];
#pragma unroll 1
    for (int kh = 0; kh < Window::kKernel; ++kh) {
      const int h = Window::input(row, kh, p_.padding_top);
      if (h < 0 || h >= p_.input_height) continue;
#pragma unroll 1
      for (int kw = 0; kw < Window::kKernel; ++kw) {
        const int w = Window::input(column, kw, p_.padding_left);
        if (w < 0 || w >= p_.input_width) continue;
        const T element = elements_of<T>(p_.raw_x)[p_.raw_x.offset(image, c, h, w)];
        float x = to_accumulator(element);
        if constexpr (kSeams != DepthwiseSeams::none) {
          if (p_.has_prologue) x = prologue.applied(element, channels->scale[warp_channel], channels->shift[warp_channel]);
        }
        sum += x * to_accumulator(elements_of<T>(p_.weight)[p_.weight.offset(c, 0, kh, kw)]);
      }
    }
    return sum;
  }

  FUSEDSC_DEVICE void take_statistics(const Row& row, const Values& y) {
#pragma unroll
    for (int v = 0; v < 8; ++v) moments_.pivot[v] = row.is_first ? y[v / 2][v % 2] : moments_.pivot[v];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((row.valid >> half & 1) == 0) continue;
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        const float deviation = y[v / 2][half * 2 + v % 2] - moments_.pivot[v];
        moments_.sum[v] += deviation;
        moments_.squares[v] += deviation * deviation;
      }
    }
  }

  FUSEDSC_DEVICE void apply_epilogue(const Row& row, Values& y) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int v = i / 4 * 2 + i % 2;
      y[i / 4][i % 4] = y[i / 4][i % 4] * channels->epilogue_scale[v] + channels->epilogue_shift[v];
    }
    activate(p_.epilogue_activation, reinterpret_cast<float(&)[16]>(y));
    if (p_.residual.data == nullptr || channel >= p_.channels) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((row.valid >> half & 1) == 0) continue;
      const Position of_tile = position(half);
      float added[8];
      load<8>(elements_of<T>(p_.residual) +
              p_.residual.offset(at_->image + of_tile.image, channel, row.row, at_->column + of_tile.column))
          .widen(added);
#pragma unroll
      for (int v = 0; v < 8; ++v) y[v / 2][half * 2 + v % 2] += added[v];
    }
  }

  const DepthwiseTilesParameters& p_;
  int places_[2];                          ///< of the thread's positions, in a row of a tile of outputs
  int valid_ = 0;                          ///< which of them exist in the piece: bit per half
  const DepthwiseTileNote* at_ = nullptr;  ///< the tile
  bool has_pivot_ = false;
  ShiftedMoments<float, 8> moments_;
};

}  // namespace fusedsc::gpu::hopper
