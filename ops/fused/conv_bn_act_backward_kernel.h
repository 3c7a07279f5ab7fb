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
  int grad_begin = 0;  ///< in a stage, in words
  int copied_positions = 1;  ///< by a warp at a time
  Divisor by_grad_runs;
  float* partials = nullptr;  ///< [split]{[channel]{sum g X, sum d X, sum g, sum g d}, sum X}
};

/// Of one channel's partial results.
FUSEDSC_HOST_DEVICE constexpr int conv_columns(int words) { return 2 * 8 * words + 2; }
/// Of a split.
FUSEDSC_HOST_DEVICE constexpr int conv_partials(int words, int channels) { return channels * conv_columns(words) + 8 * words; }

template <class T, int kWords, int kStep, int kStages>
class ConvBackward {
 public:
  static constexpr int kGroupChannels = 16, kTaps = 8 * kWords, kColumns = conv_columns(kWords);

  FUSEDSC_DEVICE static void run(const ConvBackwardParameters& parameters) { ConvBackward(parameters).work(); }

 private:
  FUSEDSC_DEVICE explicit ConvBackward(const ConvBackwardParameters& parameters)
      : q_(parameters), p_(parameters.shape), turn_(parameters.shape), patches_(parameters.shape) {
    lane_ = thread_index() % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = turn_.group * kGroupChannels + lane_ / 4 + 8 * i;
      read_filter<T>(p_, channel, filters_[i]);
      minus_mean_[2 * i] = minus_mean_[2 * i + 1] = -channel_value(p_, p_.mean, channel, 0);
      scale_[i] = channel_value(p_, p_.invstd, channel, 1) * channel_value(p_, p_.bn_weight, channel, 1);
      bias_[i] = channel_value(p_, p_.bn_bias, channel, 0);
    }
    gradient_place_ = (lane_ / 16 * 8 + lane_ % 8) * q_.grad_pitch + turn_.group * 8 + lane_ / 8 % 2 * 4;
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
          turn_.for_products(p_, tile, [&](int row, int product) {
            add_product(stage + patches_.place(p_, row, product),
                        stage + q_.grad_begin + 16 * (row * p_.row_tiles + product) * q_.grad_pitch + gradient_place_,
                        p_.output_width - 16 * product);
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
  FUSEDSC_DEVICE void add_product(const std::uint32_t* rows, const std::uint32_t* gradients, int columns) {
    std::uint32_t x[2][kWords];
    patches_.read(rows, x);
    if (columns < 16) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < kWords; ++r) x[h][r] = lane_ / 4 + 8 * h < columns ? x[h][r] : 0u;
      }
    }
    std::uint32_t g_words[4];  // of channels l / 4, the same + 8; then of positions from 8 on
    load_turned(gradients, g_words);

    float d[8];  // of 8 positions each: two positions of channel l / 4, the same of channel l / 4 + 8
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sums[4] = {minus_mean_[0], minus_mean_[1], minus_mean_[2], minus_mean_[3]};
#pragma unroll
      for (int s = 0; s < kWords; s += 2) {
        wave_multiply_add(sums,
                          {{filters_[0][s], filters_[1][s], filters_[0][s + 1], filters_[1][s + 1]},
                           {x[h][s], x[h][s + 1]}},
                          T());
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) d[4 * h + i] = sums[i];
    }
    std::uint32_t turned_x[kWords][2];  // pairs of positions of an element, of pairs of elements of a position
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) turned_x[r][h] = turned(x[h][r]);
    }
    float g[8], z[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) to_floats(g_words[r], g[2 * r], g[2 * r + 1], T());
#pragma unroll
    for (int i = 0; i < 8; ++i) z[i] = d[i] * scale_[i / 2 % 2] + bias_[i / 2 % 2];
    if (p_.clamps) {
#pragma unroll
      for (int i = 0; i < 8; ++i) g[i] = z[i] > p_.low && z[i] < p_.high ? g[i] : 0.0f;
    } else {
      activate_backward(p_.activation, z, g);
    }
    std::uint32_t g_rows[4], d_rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        sum_g_[r % 2] += g[i];
        sum_gd_[r % 2] += g[i] * d[i];
      }
      g_rows[r] = to_bits(g[2 * r], g[2 * r + 1], T());
      d_rows[r] = to_bits(d[2 * r], d[2 * r + 1], T());
    }
    const std::uint32_t ones = to_bits(1, 1, T());
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
      const std::uint32_t(&b)[2] = turned_x[r];
      wave_multiply_add(sum_gx_[r], {{g_rows[0], g_rows[1], g_rows[2], g_rows[3]}, {b[0], b[1]}}, T());
      wave_multiply_add(sum_dx_[r], {{d_rows[0], d_rows[1], d_rows[2], d_rows[3]}, {b[0], b[1]}}, T());
      if (p_.groups == 1 || r % 2 == turn_.group) {  // once, whatever the number of groups
        wave_multiply_add(sum_x_[r], {{ones, ones, ones, ones}, {b[0], b[1]}}, T());
      }
    }
  }

  /// The block's sums, each the sum of its warps' in their order.
  FUSEDSC_DEVICE void leave() {
    float* memory = static_cast<float*>(block_memory());  // [warp]{[channel of the group][column], sum X}
    constexpr int kWarpSums = kGroupChannels * kColumns + kTaps;
    float* own = memory + thread_index() / 32 * kWarpSums;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* row = own + (lane_ / 4 + 8 * i) * kColumns;
#pragma unroll
      for (int r = 0; r < kWords; ++r) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int tap = 8 * r + lane_ % 4 * 2 + j;
          row[tap] = sum_gx_[r][2 * i + j];
          row[kTaps + tap] = sum_dx_[r][2 * i + j];
        }
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        sum_g_[i] += shuffle_xor(sum_g_[i], distance);
        sum_gd_[i] += shuffle_xor(sum_gd_[i], distance);
      }
      if (lane_ % 4 == 0) {
        row[2 * kTaps] = sum_g_[i];
        row[2 * kTaps + 1] = sum_gd_[i];
      }
    }
    if (lane_ < 4) {
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        own[kGroupChannels * kColumns + i / 2 * 8 + lane_ * 2 + i % 2] = sum_x_[i / 2][i % 2];
      }
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
  std::uint32_t filters_[2][kWords];
  float minus_mean_[4], scale_[2], bias_[2];
  float sum_gx_[kWords][4] = {}, sum_dx_[kWords][4] = {};  ///< of channels l / 4 and l / 4 + 8
  float sum_x_[kWords][4] = {};                            ///< four times the same
  float sum_g_[2] = {}, sum_gd_[2] = {};
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
