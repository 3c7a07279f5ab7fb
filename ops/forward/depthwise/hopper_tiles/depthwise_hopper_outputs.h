/// What happens to the finished outputs of the depthwise forward kernel for Hopper GPUs: statistics or an epilogue, and
/// into the tile that leaves.
#pragma once

#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/forward/depthwise/hopper_tiles/depthwise_hopper_prologue.h"
#include "fusedsc/forward/depthwise/rows/depthwise_window_sum.h"

namespace fusedsc::gpu::hopper {

/// Of a warp's 8 channels; of these a thread has two, at positions lane / 4 and 8 further of each product.
template <class T, int kKernel, int kStride, int kProducts, DepthwiseFusion kFusion>
class DepthwiseTileOutputs {
 public:
  struct Row {
    int row;
    std::uint32_t valid;  ///< which of the thread's positions exist there: bit 2 * product + half
    bool is_first;        ///< that exists
  };

  int channel = 0;      ///< of the warp, the first
  int first_image = 0;  ///< of the warp, in a tile
  float bias[2], epilogue_scale[2], epilogue_shift[2];

  FUSEDSC_DEVICE explicit DepthwiseTileOutputs(const DepthwiseTilesParameters& p) : p_(p) {}

  /// Of the piece's row `row`, if it is one.
  FUSEDSC_DEVICE Row row_of(int row, bool exists) {
    const Row result{row, exists ? valid_ : 0, exists && !has_pivot_};
    has_pivot_ |= exists;
    return result;
  }

  /// Which of the thread's positions exist: bit 2 * product + half.
  FUSEDSC_DEVICE void begin_piece(const DepthwiseTileNote& at) {
    image_ = at.image;
    column_ = at.column;
    valid_ = 0;
    const int g = thread_index() % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * kProducts; ++i) {
      const Position position = position_of(i, g);
      const bool exists = at.column + position.column < p_.output_width && at.image + position.image < p_.batch;
      valid_ |= exists ? 1u << i : 0u;
    }
    if constexpr (kFusion == DepthwiseFusion::training) {
      int count = 0;
#pragma unroll
      for (int i = 0; i < 2 * kProducts; ++i) count += valid_ >> i & 1;
      moments_.count += static_cast<float>(count * (at.end - at.begin));
    }
  }

  /// Products `first` and the next of a row. see(first, words) reads elements of x that they see, as their factors
  /// were: a word of the thread's two channels for each product and half.
  template <class See>
  FUSEDSC_DEVICE void finish(unsigned char* out, int first, const Row& row, float (&y)[2][4],
                             const DepthwiseTilePrologue<T>& prologue, const See& see) {
    float any = y[0][0] + y[0][2];  // of positions; what is not finite in one channel is in all 8 of them
    if (first + 1 < kProducts) any += y[1][0] + y[1][2];
    if (any_of_warp(!is_finite(any))) compute_again(first, row, y, prologue, see);
#pragma unroll
    for (int i = 0; i < 2 && first + i < kProducts; ++i) {
      if constexpr (kFusion == DepthwiseFusion::training) take_statistics(first + i, row, y[i]);
      if constexpr (kFusion == DepthwiseFusion::eval) apply_epilogue(first + i, row, y[i]);
    }
    unsigned char* to = out + first * p_.out_product_bytes;
    const std::uint32_t low = to_bits(y[0][0], y[0][1], T()), high = to_bits(y[0][2], y[0][3], T());
    if (first + 1 < kProducts) {
      store_matrices(to, {low, high, to_bits(y[1][0], y[1][1], T()), to_bits(y[1][2], y[1][3], T())});
    } else {
      store_matrices(to, {low, high});
    }
  }

  /// Of the block: the lanes of a warp with the same channels, then the warps.
  FUSEDSC_DEVICE void leave_statistics(unsigned char* block_tiles, int warp, int split, int first_channel) const {
    if (p_.partials == nullptr) return;
    warp_barrier();
    block_barrier();  // tiles were where the moments shall be
    auto* memory = reinterpret_cast<float*>(block_tiles);
    const int lane = thread_index() % 32, runs = p_.runs();
    if (warp < p_.warps()) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        float count = moments_.count, mean = moments_.mean(v), m2 = moments_.m2(v);
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) {
          const float other = shuffle_xor(count, mask), other_mean = shuffle_xor(mean, mask),
                      other_m2 = shuffle_xor(m2, mask);
          merge_moments(count, mean, m2, other, other_mean, other_m2);
        }
        if (lane < 4) {
          float* to = memory + (warp * 8 + 2 * lane + v) * 3;
          to[0] = mean;
          to[1] = m2;
          to[2] = count;
        }
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
  struct Position {
    int image, column;
  };
  /// From the tile's first, of half i.
  FUSEDSC_DEVICE Position position_of(int i, int g) const {
    if (p_.tile_columns <= 8) return {first_image + i, g};
    if (p_.tile_columns <= 16) return {first_image + i / 2, i % 2 * 8 + g};
    return {first_image, i * 8 + g};
  }

  /// Where zeros of the other operand have made NaNs: pairs of channels whose outputs do not see one, each from its own
  /// channels. What does not exist is left as zeros.
  template <class See>
  FUSEDSC_DEVICE void compute_again(int first, const Row& row, float (&y)[2][4],
                                    const DepthwiseTilePrologue<T>& prologue, const See& see) const {
    using Taps = DepthwiseTaps<kStride>;
    const int lane = thread_index() % 32, own = lane % 4 * 2, c = channel + own;
    std::uint32_t words[2][2] = {}, in_doubt = 0;  // bit i: of half i % 2 of product i / 2
    see(first, words);
#pragma unroll
    for (int i = 0; i < 4 && first + i / 2 < kProducts; ++i) {
      float(&pair)[4] = y[i / 2];
      const int v = i % 2 * 2;
      if (is_finite(pair[v]) && is_finite(pair[v + 1])) continue;
      const bool exists = (row.valid >> (2 * first + i) & 1) != 0 && c < p_.channels;
      if (exists) {
        float seen[2];
        to_floats(words[i / 2][i % 2], seen[0], seen[1], T());
        if (is_in_doubt(pair[v], seen[0]) || is_in_doubt(pair[v + 1], seen[1])) in_doubt |= 1u << i;
      } else {
        pair[v] = pair[v + 1] = 0;
      }
    }
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if ((in_doubt >> i & 1) == 0) continue;
      const Position position = position_of(2 * first + i, lane / 4);
      const Taps taps(row.row, column_ + position.column, p_.padding_top, p_.padding_left);
      const DepthwiseWindowSum<T, kKernel, Taps> window(p_.raw_x, p_.weight, image_ + position.image, p_.input_height,
                                                        p_.input_width, taps);
      float sums[2] = {bias[0], bias[1]};
      window.template add_to<1>(sums, c, [&](float(&values)[2]) {
        if (p_.has_prologue) prologue.apply(values, own);
      });
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j / 4][j % 4] = i == j / 2 ? sums[j % 2] : y[j / 4][j % 4];
    }
  }

  FUSEDSC_DEVICE void take_statistics(int product, const Row& row, const float (&y)[4]) {
    if (product == 0) {
#pragma unroll
      for (int v = 0; v < 2; ++v) moments_.pivot[v] = row.is_first ? y[v] : moments_.pivot[v];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((row.valid >> (2 * product + half) & 1) == 0) continue;
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const float deviation = y[half * 2 + v] - moments_.pivot[v];
        moments_.sum[v] += deviation;
        moments_.squares[v] += deviation * deviation;
      }
    }
  }

  FUSEDSC_DEVICE void apply_epilogue(int product, const Row& row, float (&y)[4]) const {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = y[i] * epilogue_scale[i % 2] + epilogue_shift[i % 2];
    activate(p_.epilogue_activation, y);
    if (p_.residual.data == nullptr || channel >= p_.channels) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if ((row.valid >> (2 * product + half) & 1) == 0) continue;
      const Position position = position_of(2 * product + half, lane / 4);
      float added[2];
      load<2>(elements_of<T>(p_.residual) +
              p_.residual.offset(image_ + position.image, channel + lane % 4 * 2, row.row, column_ + position.column))
          .widen(added);
      y[half * 2] += added[0];
      y[half * 2 + 1] += added[1];
    }
  }

  const DepthwiseTilesParameters& p_;
  std::uint32_t valid_ = 0;
  int image_ = 0, column_ = 0;  ///< the piece's first
  bool has_pivot_ = false;
  ShiftedMoments<float, 2> moments_;
};

}  // namespace fusedsc::gpu::hopper
