/// The first pass of conv_bn_act (statistics) and its second (the result), on GPUs with products of matrices by waves:
/// positions are rows, output channels columns. Both convolve; the raw output stays in registers.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/products/wave.h"
#include "fusedsc/common/gpu/sums/moments.h"
#include "fusedsc/fused/conv_bn_act/conv_bn_act_patches.h"

namespace fusedsc::gpu {

struct ConvForwardParameters {
  ConvShape shape;
  DeviceTensor y;
  void* partials = nullptr;  ///< [split][mean, m2, count][channel]
};

/// A warp's products: 16 positions and 8 * kTiles channels. Of a position a lane has neighbouring channels, as filters
/// are dealt to columns so: 8 bytes or 16 of y.
template <class T, int kWords, int kStep, int kTiles>
struct ConvProduct {
  static constexpr int kLaneChannels = 2 * kTiles;

  std::uint32_t filters[kTiles][kWords];
  PatchReader<T, kWords, kStep, false> patches;

  FUSEDSC_DEVICE ConvProduct(const ConvShape& p, int group) : patches(p, 0) {
    const int column = thread_index() % 32 / 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int channel = group * 8 * kTiles + column / 2 * kLaneChannels + 2 * j + column % 2;
      read_filter<T>(p, channel, 0, filters[j]);
    }
  }

  FUSEDSC_DEVICE static int lane_channel(int group) { return group * 8 * kTiles + thread_index() % 4 * kLaneChannels; }

  /// sums[h][c] = start[h % kRows][c] + that of position lane / 4 + 8 * h and the lane's channel c.
  template <int kRows>
  FUSEDSC_DEVICE void multiply(const std::uint32_t (&x)[2][kWords], const float (&start)[kRows][kLaneChannels],
                               float (&sums)[2][kLaneChannels]) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4] = {start[0][2 * j], start[0][2 * j + 1], start[kRows - 1][2 * j], start[kRows - 1][2 * j + 1]};
#pragma unroll
      for (int s = 0; s < kWords; s += 2) {
        wave_multiply_add(d, {{x[0][s], x[1][s], x[0][s + 1], x[1][s + 1]}, {filters[j][s], filters[j][s + 1]}}, T());
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i / 2][2 * j + i % 2] = d[i];
    }
  }
};

/// Sums of deviations from a value near the mean, the warp's first, so that the squares do not cancel. kRows: with how
/// many copies of -pivot, in registers of their own, products begin.
template <int kChannels, int kRows>
struct ConvMoments {
  float minus_pivot[kRows][kChannels] = {}, sum[kChannels] = {}, squares[kChannels] = {};
  int count = 0;

  /// values: of the lane's positions in the first product. The warp's lanes with the same channels average them.
  FUSEDSC_DEVICE void set_pivot(const float (&values)[2][kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      float total = values[0][c];
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) total += shuffle_xor(total, distance);
#pragma unroll
      for (int h = 0; h < kRows; ++h) {
        minus_pivot[h][c] = total * -0.125f;
        keep_in_register(minus_pivot[h][c]);
      }
    }
  }

  FUSEDSC_DEVICE void add(const float (&deviations)[2][kChannels]) {
#pragma unroll
    for (int i = 0; i < 2 * kChannels; ++i) {
      const float deviation = deviations[i / kChannels][i % kChannels];
      sum[i % kChannels] += deviation;
      squares[i % kChannels] += deviation * deviation;
    }
  }

  /// Of the whole warp, to rows of [mean, m2, count][channel]; by lanes below 4.
  FUSEDSC_DEVICE void leave(float* row, int pitch) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        sum[c] += shuffle_xor(sum[c], distance);
        squares[c] += shuffle_xor(squares[c], distance);
      }
    }
    if (thread_index() % 32 >= 4) return;
    const float divisor = count > 0 ? static_cast<float>(count) : 1.0f;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      row[c] = sum[c] / divisor - minus_pivot[0][c];
      row[pitch + c] = propagating_max(squares[c] - sum[c] * (sum[c] / divisor), 0.0f);
      row[2 * pitch + c] = static_cast<float>(count);
    }
  }
};

template <class T, int kWords, int kStep, int kTiles, int kStages, bool kStatistics>
FUSEDSC_DEVICE void conv_forward(const ConvForwardParameters& parameters) {
  const ConvShape& p = parameters.shape;
  using Product = ConvProduct<T, kWords, kStep, kTiles>;
  constexpr int kChannels = Product::kLaneChannels;
  const int warp = thread_index() / 32, position = thread_index() % 32 / 4;
  const ConvTurn turn(p);
  clear_shared_memory(kStages * p.stage_words);
  const Product product(p, turn.group);
  const int channel = Product::lane_channel(turn.group);
  ConvMoments<kChannels, PatchFormat<T>::kElements> moments;
  float scale[kChannels], shift[kChannels];
  std::uint32_t low = 0, high = 0;
  if constexpr (!kStatistics) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      scale[c] = channel_value(p, p.bn_weight, channel + c, 1) * channel_value(p, p.invstd, channel + c, 1);
      shift[c] = channel_value(p, p.bn_bias, channel + c, 0) - channel_value(p, p.mean, channel + c, 0) * scale[c];
    }
    if constexpr (sizeof(T) == 2) {
      low = to_bits(p.low, p.low, T());
      high = to_bits(p.high, p.high, T());
    }
  }

  for_tiles<kStages>(
      p, [&](std::uint32_t* stage, const ConvTile& tile) { start_input_rows<T>(p, tile, stage); },
      [&](const std::uint32_t* stage, const ConvTile& tile) {
        T* tile_to = elements_of<T>(parameters.y) + parameters.y.offset(tile.image, channel, tile.row, position);
        turn.for_products(p, tile, [&](const ConvTurn::Place& place) {
          std::uint32_t x[2][kWords];
          product.patches.read(stage + place.words, x);
          const int columns = place.product == p.partial_product ? p.partial_columns : 16;
          float sums[2][kChannels];
          if constexpr (kStatistics) {
            if (moments.count == 0) {
              product.multiply(x, moments.minus_pivot, sums);  // still zero
              moments.set_pivot(sums);
            }
            product.multiply(x, moments.minus_pivot, sums);
            if (columns < 16) {
#pragma unroll
              for (int c = 0; c < 2 * kChannels; ++c) {
                if (position + c / kChannels * 8 >= columns) sums[c / kChannels][c % kChannels] = 0;
              }
            }
            moments.add(sums);
            moments.count += columns;
          } else {
            const float zeros[2][kChannels] = {};
            product.multiply(x, zeros, sums);
            T* to = tile_to + place.row * parameters.y.row + 16 * place.product * parameters.y.column;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
              for (int c = 0; c < kChannels; ++c) sums[h][c] = sums[h][c] * scale[c] + shift[c];
              if (!p.clamps) activate(p.activation, sums[h]);
              T* own = to + 8 * h * parameters.y.column;
              if constexpr (sizeof(T) == 2) {
                Aligned<std::uint32_t, kTiles> words;
#pragma unroll
                for (int j = 0; j < kTiles; ++j) {
                  words.elements[j] = clamped(to_bits(sums[h][2 * j], sums[h][2 * j + 1], T()), low, high, T());
                }
                if (position + 8 * h < columns) *reinterpret_cast<Aligned<std::uint32_t, kTiles>*>(own) = words;
              } else {
                constexpr int kRun = kChannels < 4 ? kChannels : 4;
#pragma unroll
                for (int c = 0; c < kChannels; ++c) sums[h][c] = clamped(sums[h][c], p.low, p.high);
#pragma unroll
                for (int c = 0; c < kChannels && position + 8 * h < columns; c += kRun) {
                  store<kRun>(sums[h] + c, own + c);
                }
              }
            }
          }
        });
      });

  if constexpr (kStatistics) {
    float* memory = static_cast<float*>(shared_memory());  // [warp][mean, m2, count][channel of the group]
    constexpr int kGroupChannels = 8 * kTiles;
    moments.leave(memory + warp * 3 * kGroupChannels + channel - turn.group * kGroupChannels, kGroupChannels);
    block_barrier();
    float* row = static_cast<float*>(parameters.partials) + static_cast<std::int64_t>(block_index()) * 3 * p.channels;
    for (int c = thread_index(); c < p.channels; c += kConvThreads) {
      const float* from = memory + c / kGroupChannels * p.group_warps * 3 * kGroupChannels + c % kGroupChannels;
      float mean = 0, m2 = 0, count = 0;
      for (int w = 0; w < p.group_warps; ++w, from += 3 * kGroupChannels) {
        merge_moments(count, mean, m2, from[2 * kGroupChannels], from[0], from[kGroupChannels]);
      }
      row[c] = mean;
      row[p.channels + c] = m2;
      row[2 * p.channels + c] = count;
    }
  }
}

// ----------------------------------------------------------------------------------------------------------- per
// channel

struct ConvStatisticsParameters {
  const void* partials = nullptr;  ///< [split][mean, m2, count][channel]
  int splits = 0, channels = 0;
  double count = 1, eps = 0;
  void *mean = nullptr, *invstd = nullptr, *variance = nullptr;
};

/// 32 neighbouring threads share a channel.
FUSEDSC_DEVICE void conv_statistics(const ConvStatisticsParameters& p) {
  const int channel = static_cast<int>(block_index()) * kConvWarps + thread_index() / 32, lane = thread_index() % 32;
  const bool exists = channel < p.channels;
  double sum = 0, squares = 0, pivot = 0;
  if (exists) {
    const float* from = static_cast<const float*>(p.partials) + channel;
    pivot = p.splits > 0 ? from[0] : 0;
#pragma unroll 4
    for (int split = lane; split < p.splits; split += 32) {
      const float* row = from + static_cast<std::int64_t>(split) * 3 * p.channels;
      const double own = row[2 * p.channels], distance = own > 0 ? row[0] - pivot : 0.0;
      sum += own * distance;
      squares += row[p.channels] + own * distance * distance;
    }
  }
  sum = wave_sum(sum, 32);
  squares = wave_sum(squares, 32);
  if (!exists || lane != 0) return;
  const double distance = sum / p.count, m2 = squares - sum * distance;
  const double deviations = propagating_max(m2, 0.0);
  static_cast<float*>(p.mean)[channel] = static_cast<float>(pivot + distance);
  static_cast<float*>(p.invstd)[channel] = static_cast<float>(1 / sqrt(deviations / p.count + p.eps));
  if (p.variance == nullptr) return;
  static_cast<float*>(p.variance)[channel] = static_cast<float>(deviations / (p.count > 1 ? p.count - 1 : 1));
}

}  // namespace fusedsc::gpu
