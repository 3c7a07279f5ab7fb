/// The backward pass of conv_bn_act, on GPUs with products of matrices by waves: one pass over x and grad_y. With g =
/// grad_y * activation'(.), d the raw output less its mean, X the patches and N positions, BatchNorm's backward is
///   grad_weight = scale * (sum g X - sum g / N * sum X - sum g d / N * invstd^2 * sum d X),
/// so that nothing of the raw output's gradient but these sums is needed, and they need not know of each other. The raw
/// output is computed again.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/depthwise_work.h"
#include "fusedsc/fused/conv_bn_act_patches.h"

namespace fusedsc::gpu {

struct ConvBackwardParameters {
  ConvShape shape;
  ConstDeviceTensor grad_y;
  int grad_runs = 1;   ///< copies, of 16 bytes each, of a position of grad_y
  int grad_pitch = 4;  ///< of a position in block memory, in words: an odd number of runs, on different banks
  int grad_begin = 0;     ///< in a stage, in words
  int product_words = 0;  ///< from the gradients of a product to those of the next
  int copied_positions = 1;  ///< by a warp at a time
  Divisor by_grad_runs;
  float* partials = nullptr;  ///< [split]{[channel]{sum g X, sum d X, sum g, sum g d}, sum X}
};

/// Of one channel's partial results.
FUSEDSC_HOST_DEVICE constexpr int conv_columns(int words) { return 2 * 8 * words + 2; }
/// Of a split.
FUSEDSC_HOST_DEVICE constexpr int conv_partials(int words, int channels) { return channels * conv_columns(words) + 8 * words; }

template <class T, int kWords, int kStep, int kStages, int kHalves = 1, int kLeaveOut = 0>
class ConvBackward {
 public:
  static constexpr int kGroupChannels = 16 * kHalves, kTaps = 8 * kWords, kColumns = conv_columns(kWords);
  static constexpr bool kHasOnes = kStep > 0;  ///< the sum of g is that of its products with the patches' 1, if g is not rounded

  FUSEDSC_DEVICE static void run(const ConvBackwardParameters& parameters) { ConvBackward(parameters).work(); }

 private:
  FUSEDSC_DEVICE explicit ConvBackward(const ConvBackwardParameters& parameters)
      : q_(parameters), p_(parameters.shape), turn_(parameters.shape), patches_(parameters.shape, T()) {
    lane_ = thread_index() % 32;
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      const int channel = turn_.group * kGroupChannels + lane_ / 4 + 8 * i;
      read_filter<T>(p_, channel, filters_[i]);
#pragma unroll
      for (int j = 2 * i; j < 2 * i + 2; ++j) {
        minus_mean_[j] = -channel_value(p_, p_.mean, channel, 0);
        keep_in_register(minus_mean_[j]);
      }
      scale_[i] = channel_value(p_, p_.invstd, channel, 1) * channel_value(p_, p_.bn_weight, channel, 1);
      bias_[i] = channel_value(p_, p_.bn_bias, channel, 0) - (is_relu6() ? 3.0f : 0.0f);
    }
    gradient_place_ = (lane_ / 16 * 8 + lane_ % 8) * q_.grad_pitch + turn_.group * 8 * kHalves + lane_ / 8 % 2 * 4;
    std::uint32_t run = static_cast<std::uint32_t>(lane_);
    copied_position_ = static_cast<int>(q_.by_grad_runs.divide(run));
    copied_run_ = static_cast<int>(run);
  }

  FUSEDSC_DEVICE void work() {
    clear_block_memory(kStages * p_.stage_words);
    for_tiles<kStages>(
        p_,
        [&](std::uint32_t* stage, const ConvTile& tile) {
          start_input_rows<T>(p_, tile, stage);
          start_gradients(tile, stage + q_.grad_begin);
        },
        [&](const std::uint32_t* stage, const ConvTile& tile) {
          const std::uint32_t* gradients = stage + q_.grad_begin + gradient_place_;
          turn_.for_products(p_, tile, [&](int row, int product, int i) {
            std::uint32_t x[2][kWords];
            patches_.read(p_, stage, row, product, x);
            add_product(x, gradients + i * q_.product_words, p_.output_width - 16 * product);
          });
        });
    leave();
  }

  /// The positions of a product each warp, some of them at a time; zeros where there are none.
  FUSEDSC_DEVICE void start_gradients(const ConvTile& tile, std::uint32_t* stage) const {
    const T* image = elements_of<T>(q_.grad_y) + tile.image * q_.grad_y.image + 8 * copied_run_;
    int row = 0, product = thread_index() / 32;
    while (true) {
      for (; product >= p_.row_tiles; product -= p_.row_tiles) ++row;
      if (row >= p_.tile_rows) return;
      const bool row_exists = tile.row + row < p_.output_height;
      const T* from = image + (tile.row + row) * q_.grad_y.row +
                      (16 * product + copied_position_) * q_.grad_y.column;
      std::uint32_t* to = stage + (16 * (row * p_.row_tiles + product) + copied_position_) * q_.grad_pitch +
                          4 * copied_run_;
      for (int position = copied_position_; position < 16; position += q_.copied_positions) {
        if (copied_position_ < q_.copied_positions) {
          start_copy<16>(to, from, row_exists && 16 * product + position < p_.output_width);
        }
        from += q_.copied_positions * q_.grad_y.column;
        to += q_.copied_positions * q_.grad_pitch;
      }
      product += kConvWarps;
    }
  }

  /// 16 positions, of which the row has `columns`.
  FUSEDSC_DEVICE void add_product(std::uint32_t (&x)[2][kWords], const std::uint32_t* gradients, int columns) {
    if (columns < 16) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < kWords; ++r) x[h][r] = lane_ / 4 + 8 * h < columns ? x[h][r] : 0u;
      }
    }
    std::uint32_t turned_x[kWords][2];  // pairs of positions of an element, of pairs of elements of a position
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) turned_x[r][h] = (kLeaveOut & 1) ? x[h][r] + 5 : turned(x[h][r]);
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) add_half(half, x, turned_x, gradients + 8 * half);
    if (kLeaveOut & 2) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // each position once, whatever the number of groups
      if (p_.groups > 1 && turn_.group != h) continue;
#pragma unroll
      for (int r = 0; r < kWords; ++r) {
        float first, second;
        to_floats(x[h][r], first, second, T());
        sum_x_[2 * r] += first;
        sum_x_[2 * r + 1] += second;
      }
    }
  }

  /// 16 of the group's channels.
  FUSEDSC_DEVICE void add_half(int half, const std::uint32_t (&x)[2][kWords], const std::uint32_t (&turned_x)[kWords][2],
                               const std::uint32_t* gradients) {
    const std::uint32_t(&filters)[kWords] = filters_[2 * half], (&more_filters)[kWords] = filters_[2 * half + 1];
    std::uint32_t g_words[4];  // of channels l / 4, the same + 8; then of positions from 8 on
    load_turned(gradients, g_words);

    float d[8];  // of 8 positions each: two positions of channel l / 4, the same of channel l / 4 + 8
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sums[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = minus_mean_[4 * half + i];
#pragma unroll
      for (int s = 0; s < kWords; s += 2) {
        wave_multiply_add(sums, {{filters[s], more_filters[s], filters[s + 1], more_filters[s + 1]}, {x[h][s], x[h][s + 1]}},
                          T());
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) d[4 * h + i] = sums[i];
    }
    float g[8], z[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) to_floats(g_words[r], g[2 * r], g[2 * r + 1], T());
#pragma unroll
    for (int i = 0; i < 8; ++i) z[i] = d[i] * scale_[2 * half + i / 2 % 2] + bias_[2 * half + i / 2 % 2];
    if (kLeaveOut & 4) {
    } else if (is_relu6()) {  // z is less 3
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = __builtin_fabsf(z[i]) < 3 ? g[i] : 0.0f;
    } else if (p_.clamps) {
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = z[i] > p_.low ? g[i] : 0.0f;
    } else {
      activate_backward(p_.activation, z, g);
      if constexpr (kHasOnes) {  // the rounded ones in the products would do, but for the sum itself
#pragma unroll
        for (int i = 0; i < 8; ++i) sum_g_[2 * half + i / 2 % 2] += g[i];
      }
    }
    std::uint32_t g_rows[4], d_rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        if constexpr (!kHasOnes) sum_g_[2 * half + r % 2] += g[i];
        sum_gd_[2 * half + r % 2] += g[i] * d[i];
      }
      g_rows[r] = to_bits(g[2 * r], g[2 * r + 1], T());
      d_rows[r] = to_bits(d[2 * r], d[2 * r + 1], T());
    }
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
      const std::uint32_t(&b)[2] = turned_x[r];
      wave_multiply_add(sum_gx_[half][r], {{g_rows[0], g_rows[1], g_rows[2], g_rows[3]}, {b[0], b[1]}}, T());
      if (!(kLeaveOut & 8))
      wave_multiply_add(sum_dx_[half][r], {{d_rows[0], d_rows[1], d_rows[2], d_rows[3]}, {b[0], b[1]}}, T());
    }
  }

  FUSEDSC_DEVICE bool is_relu6() const { return p_.activation == Activation::relu6; }

  /// The block's sums, each the sum of its warps' in their order.
  FUSEDSC_DEVICE void leave() {
    float* memory = static_cast<float*>(block_memory());  // [warp]{[channel of the group][column], sum X}
    constexpr int kWarpSums = kGroupChannels * kColumns + kTaps;
    float* own = memory + thread_index() / 32 * kWarpSums;
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      float* row = own + (lane_ / 4 + 8 * i) * kColumns;
#pragma unroll
      for (int r = 0; r < kWords; ++r) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int tap = 8 * r + lane_ % 4 * 2 + j;
          row[tap] = sum_gx_[i / 2][r][i % 2 * 2 + j];
          row[kTaps + tap] = sum_dx_[i / 2][r][i % 2 * 2 + j];
        }
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        sum_g_[i] += shuffle_xor(sum_g_[i], distance);
        sum_gd_[i] += shuffle_xor(sum_gd_[i], distance);
      }
      if (lane_ % 4 == 3) {
        row[2 * kTaps] = kHasOnes && p_.clamps ? sum_gx_[i / 2][kWords - 1][i % 2 * 2] : sum_g_[i];
        row[2 * kTaps + 1] = sum_gd_[i];
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) sum_x_[i] += shuffle_xor(sum_x_[i], distance);
      if (lane_ < 4) own[kGroupChannels * kColumns + i / 2 * 8 + lane_ * 2 + i % 2] = sum_x_[i];
    }
    block_barrier();
    const int size = conv_partials(kWords, p_.channels);
    float* to = q_.partials + static_cast<std::int64_t>(block_index()) * size;
    for (int i = thread_index(); i < size; i += kConvThreads) {
      const int channel = i / kColumns, group = channel / kGroupChannels;
      const bool is_x = channel >= p_.channels;
      const float* from = is_x ? memory + kGroupChannels * kColumns + (i - p_.channels * kColumns)
                               : memory + group * p_.group_warps * kWarpSums + i - group * kGroupChannels * kColumns;
      const int warps = is_x ? kConvWarps : p_.group_warps;
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += from[w * kWarpSums];
      to[i] = sum;
    }
  }

  const ConvBackwardParameters& q_;
  const ConvShape& p_;
  const ConvTurn turn_;
  const PatchReader<kWords, kStep> patches_;
  std::uint32_t filters_[2 * kHalves][kWords];
  float minus_mean_[4 * kHalves], scale_[2 * kHalves], bias_[2 * kHalves];
  float sum_gx_[kHalves][kWords][4] = {}, sum_dx_[kHalves][kWords][4] = {};  ///< of channels l / 4 and l / 4 + 8
  float sum_g_[2 * kHalves] = {}, sum_gd_[2 * kHalves] = {}, sum_x_[2 * kWords] = {};
  int lane_, gradient_place_, copied_position_, copied_run_;
};

// ----------------------------------------------------------------------------------------------------------- per channel

inline constexpr int kConvGradientThreads = 1024;

struct ConvGradientParameters {
  const float* partials = nullptr;  ///< as ConvBackward leaves them
  int splits = 0, channels = 0, words = 0;
  double inverse_count = 0;  ///< 0 in eval mode: the statistics are constants
  const void *bn_weight = nullptr, *invstd = nullptr;
  std::int32_t elements[8 * kMostPatchWords];  ///< as PatchWords has them, but of grad_weight
  DeviceTensor grad_weight;
  void *grad_bn_weight = nullptr, *grad_bn_bias = nullptr;
};

/// A block per channel: neighbouring threads have neighbouring sums, and some of them share one.
template <class T>
FUSEDSC_DEVICE void conv_gradient(const ConvGradientParameters& p) {
  const int channel = static_cast<int>(block_index()), taps = 8 * p.words, own = conv_columns(p.words);
  const int columns = own + taps, shares = kConvGradientThreads / columns;
  const int column = thread_index() % columns, share = thread_index() / columns;
  double* memory = static_cast<double*>(block_memory());
  if (share < shares) {
    const float* from = p.partials + (column < own ? channel * own + column : (p.channels - 1) * own + column);
    const std::int64_t size = conv_partials(p.words, p.channels);
    double sum = 0;
#pragma unroll 8
    for (int split = share; split < p.splits; split += shares) sum += from[split * size];
    memory[share * columns + column] = sum;
  }
  block_barrier();
  double total = 0;
  if (share == 0) {
    for (int s = 0; s < shares; ++s) total += memory[s * columns + column];
  }
  block_barrier();
  if (share == 0) memory[column] = total;
  block_barrier();
  const double invstd = static_cast<const float*>(p.invstd)[channel];
  const double sum_g = memory[2 * taps], sum_gd = memory[2 * taps + 1];
  if (thread_index() == 0) {
    if (p.grad_bn_weight != nullptr) static_cast<float*>(p.grad_bn_weight)[channel] = static_cast<float>(sum_gd * invstd);
    if (p.grad_bn_bias != nullptr) static_cast<float*>(p.grad_bn_bias)[channel] = static_cast<float>(sum_g);
  }
  if (p.grad_weight.data == nullptr || thread_index() >= taps) return;
  const int element = p.elements[thread_index()];
  if (element < 0) return;
  const double weight = p.bn_weight != nullptr ? static_cast<const float*>(p.bn_weight)[channel] : 1.0f;
  const double* sums = memory + thread_index();
  const double centred = sums[0] - p.inverse_count * (sum_g * sums[own] + sum_gd * invstd * invstd * sums[taps]);
  const double gradient = weight * invstd * centred;
  from_accumulator(static_cast<float>(gradient), elements_of<T>(p.grad_weight)[channel * p.grad_weight.image + element]);
}

}  // namespace fusedsc::gpu
