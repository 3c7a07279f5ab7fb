/// The backward pass of conv_bn_act, on GPUs with products of matrices by waves: one pass over x and grad_y. With g =
/// grad_y * activation'(.), x^ the normalised raw output, X the patches and N positions, BatchNorm's backward is
///   grad_weight = scale * (sum g X - sum g / N * sum X - sum g x^ / N * sum x^ X),
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
  int scratch_begin = 0;
  Divisor by_grad_runs;
  float* partials = nullptr;  ///< [split]{[channel]{sum g X, sum x^ X, sum g, sum g x^}, sum X}
};

/// Of one channel's partial results.
FUSEDSC_HOST_DEVICE constexpr int conv_columns(int words) { return 2 * 8 * words + 2; }
/// Of a split.
FUSEDSC_HOST_DEVICE constexpr int conv_partials(int words, int channels) { return channels * conv_columns(words) + 8 * words; }

template <class T, int kWords, int kStages, bool kThroughMemory>
class ConvBackward {
 public:
  static constexpr int kGroupChannels = 16, kTaps = 8 * kWords, kColumns = conv_columns(kWords);
  /// Of positions that are turned around, in block memory: an odd number of runs.
  static constexpr int kScratchPitch = 4 * (kWords | 1), kScratchWords = 16 * kScratchPitch;

  FUSEDSC_DEVICE static void run(const ConvBackwardParameters& parameters) { ConvBackward(parameters).work(); }

 private:
  FUSEDSC_DEVICE explicit ConvBackward(const ConvBackwardParameters& parameters)
      : q_(parameters), p_(parameters.shape), patches_(parameters.shape) {
    lane_ = thread_index() % 32;
    warp_ = thread_index() / 32;
    group_warps_ = kConvWarps / p_.groups;
    group_ = warp_ / group_warps_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int channel = group_ * kGroupChannels + lane_ / 4 + 8 * i;
      read_filter<T>(p_, channel, filters_[i]);
      invstd_[i] = channel_value(p_, p_.invstd, channel, 1);
      centre_[i] = -channel_value(p_, p_.mean, channel, 0) * invstd_[i];
      weight_[i] = channel_value(p_, p_.bn_weight, channel, 1);
      bias_[i] = channel_value(p_, p_.bn_bias, channel, 0);
    }
  }

  FUSEDSC_DEVICE void work() {
    clear_block_memory(q_.scratch_begin + kConvWarps * kScratchWords);
    for_tiles<kStages>(
        p_,
        [&](std::uint32_t* stage, const ConvTile& tile) {
          start_input_rows<T>(p_, tile, stage);
          start_gradients(tile, stage + q_.grad_begin);
        },
        [&](const std::uint32_t* stage, const ConvTile& tile) {
          if (group_ >= p_.groups) return;
          for (int i = warp_ % group_warps_; i < p_.tile_rows * p_.row_tiles; i += group_warps_) {
            std::uint32_t rest = static_cast<std::uint32_t>(i);
            const int row = static_cast<int>(p_.by_row_tiles.divide(rest)), column = static_cast<int>(rest) * 16;
            if (tile.row + row >= p_.output_height) break;
            add_product(stage + row * p_.stride_height * p_.pitch + column * p_.position_step,
                        stage + q_.grad_begin + 16 * i * q_.grad_pitch, column);
          }
        });
    leave();
  }

  /// Of a position a run of channels each; zeros where there is no position.
  FUSEDSC_DEVICE void start_gradients(const ConvTile& tile, std::uint32_t* to) const {
    const T* image = elements_of<T>(q_.grad_y) + tile.image * q_.grad_y.image;
    const int copies = p_.tile_rows * p_.row_tiles * 16 * q_.grad_runs;
    for (int i = thread_index(); i < copies; i += kConvThreads) {
      std::uint32_t run = static_cast<std::uint32_t>(i);
      const int position = static_cast<int>(q_.by_grad_runs.divide(run));
      std::uint32_t rest = static_cast<std::uint32_t>(position) / 16;
      const int row = tile.row + static_cast<int>(p_.by_row_tiles.divide(rest));
      const int column = static_cast<int>(rest) * 16 + position % 16;
      start_copy<16>(to + position * q_.grad_pitch + 4 * run,
                     image + row * q_.grad_y.row + column * q_.grad_y.column + 8 * run,
                     row < p_.output_height && column < p_.output_width);
    }
  }

  /// 16 positions from `column` of a row on.
  FUSEDSC_DEVICE void add_product(const std::uint32_t* rows, const std::uint32_t* gradients, int column) {
    std::uint32_t x[2][kWords];
    patches_.read(rows, x[0]);
    patches_.read(rows + 8 * p_.position_step, x[1]);
    const int columns = p_.output_width - column;
    if (columns < 16) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < kWords; ++r) x[h][r] = lane_ / 4 + 8 * h < columns ? x[h][r] : 0u;
      }
    }
    std::uint32_t turned_x[kWords][2];
    turn(x, turned_x);
    std::uint32_t g_words[4];  // of channels l / 4, the same + 8; then of positions from 8 on
    load_turned(gradients + (lane_ / 16 * 8 + lane_ % 8) * q_.grad_pitch + group_ * 8 + lane_ / 8 % 2 * 4, g_words);

    float c[2][4] = {};  // of 8 positions each: two positions of channel l / 4, the same of channel l / 4 + 8
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int s = 0; s < kWords; s += 2) {
        wave_multiply_add(c[h],
                          {{filters_[0][s], filters_[1][s], filters_[0][s + 1], filters_[1][s + 1]},
                           {x[h][s], x[h][s + 1]}},
                          T());
      }
    }
    float g[8], z[8], normalised[8];
#pragma unroll
    for (int r = 0; r < 4; ++r) to_floats(g_words[r], g[2 * r], g[2 * r + 1], T());
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int which = i / 2 % 2;
      normalised[i] = c[i / 4][i % 4] * invstd_[which] + centre_[which];
      z[i] = normalised[i] * weight_[which] + bias_[which];
    }
    activate_backward(p_.activation, z, g);
    std::uint32_t g_rows[4], normalised_rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        sum_g_[r % 2] += g[i];
        sum_g_normalised_[r % 2] += g[i] * normalised[i];
      }
      g_rows[r] = to_bits(g[2 * r], g[2 * r + 1], T());
      normalised_rows[r] = to_bits(normalised[2 * r], normalised[2 * r + 1], T());
    }
#pragma unroll
    for (int r = 0; r < kWords; ++r) {
      wave_multiply_add(
          sum_gx_[r], {{g_rows[0], g_rows[1], g_rows[2], g_rows[3]}, {turned_x[r][0], turned_x[r][1]}}, T());
      wave_multiply_add(sum_nx_[r],
                        {{normalised_rows[0], normalised_rows[1], normalised_rows[2], normalised_rows[3]},
                         {turned_x[r][0], turned_x[r][1]}},
                        T());
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {  // each position once, whatever the number of groups
      if (p_.groups > 1 && group_ != h) continue;
#pragma unroll
      for (int r = 0; r < kWords; ++r) {
        float first, second;
        to_floats(x[h][r], first, second, T());
        sum_x_[2 * r] += first;
        sum_x_[2 * r + 1] += second;
      }
    }
  }

  /// From pairs of elements of a position to pairs of positions of an element.
  FUSEDSC_DEVICE void turn(const std::uint32_t (&x)[2][kWords], std::uint32_t (&to)[kWords][2]) const {
    if constexpr (kThroughMemory) {
      auto* scratch = static_cast<std::uint32_t*>(block_memory()) + q_.scratch_begin + warp_ * kScratchWords;
      wave_barrier();  // the words of the product before are read
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < kWords; ++r) scratch[(8 * h + lane_ / 4) * kScratchPitch + 4 * r + lane_ % 4] = x[h][r];
      }
      wave_barrier();
      const std::uint32_t* from = scratch + (lane_ / 8 % 2 * 8 + lane_ % 8) * kScratchPitch + lane_ / 16 * 4;
#pragma unroll
      for (int r = 0; r < kWords; r += 2) {
        std::uint32_t words[4];
        load_turned(from + 4 * r, words);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[r + i / 2][i % 2] = words[i];
      }
    } else {
#pragma unroll
      for (int r = 0; r < kWords; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) to[r][h] = turned(x[h][r]);
      }
    }
  }

  /// The block's sums, each the sum of its warps' in their order.
  FUSEDSC_DEVICE void leave() {
    float* memory = static_cast<float*>(block_memory());  // [warp]{[channel of the group][column], sum X}
    constexpr int kWarpSums = kGroupChannels * kColumns + kTaps;
    float* own = memory + warp_ * kWarpSums;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* row = own + (lane_ / 4 + 8 * i) * kColumns;
#pragma unroll
      for (int r = 0; r < kWords; ++r) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int tap = 8 * r + lane_ % 4 * 2 + j;
          row[tap] = sum_gx_[r][2 * i + j];
          row[kTaps + tap] = sum_nx_[r][2 * i + j];
        }
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        sum_g_[i] += shuffle_xor(sum_g_[i], distance);
        sum_g_normalised_[i] += shuffle_xor(sum_g_normalised_[i], distance);
      }
      if (lane_ % 4 == 0) {
        row[2 * kTaps] = sum_g_[i];
        row[2 * kTaps + 1] = sum_g_normalised_[i];
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
                               : memory + group * group_warps_ * kWarpSums + i - group * kGroupChannels * kColumns;
      const int warps = is_x ? kConvWarps : group_warps_;
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += from[w * kWarpSums];
      to[i] = sum;
    }
  }

  const ConvBackwardParameters& q_;
  const ConvShape& p_;
  PatchReader<kWords> patches_;
  std::uint32_t filters_[2][kWords];
  float invstd_[2], centre_[2], weight_[2], bias_[2];
  float sum_gx_[kWords][4] = {}, sum_nx_[kWords][4] = {};  ///< of channels l / 4 and l / 4 + 8
  float sum_g_[2] = {}, sum_g_normalised_[2] = {}, sum_x_[2 * kWords] = {};
  int lane_, warp_, group_warps_, group_;
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
  const double sum_g = memory[2 * taps], sum_g_normalised = memory[2 * taps + 1];
  if (thread_index() == 0) {
    if (p.grad_bn_weight != nullptr) static_cast<float*>(p.grad_bn_weight)[channel] = static_cast<float>(sum_g_normalised);
    if (p.grad_bn_bias != nullptr) static_cast<float*>(p.grad_bn_bias)[channel] = static_cast<float>(sum_g);
  }
  if (p.grad_weight.data == nullptr || thread_index() >= taps) return;
  const int element = p.elements[thread_index()];
  if (element < 0) return;
  const double weight = p.bn_weight != nullptr ? static_cast<const float*>(p.bn_weight)[channel] : 1.0f;
  const double* sums = memory + thread_index();
  const double centred = sums[0] - p.inverse_count * (sum_g * sums[own] + sum_g_normalised * sums[taps]);
  const double gradient = weight * static_cast<const float*>(p.invstd)[channel] * centred;
  from_accumulator(static_cast<float>(gradient), elements_of<T>(p.grad_weight)[channel * p.grad_weight.image + element]);
}

}  // namespace fusedsc::gpu
