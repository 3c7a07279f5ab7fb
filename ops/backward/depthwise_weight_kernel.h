/// Depthwise convolution on GPUs, weight and bias gradients: each block sums its share of the images, and
/// sum_partials (partials_kernel.h) adds the blocks' sums in their order.
#pragma once

#include "fusedsc/common/gpu/block_sums.h"
#include "fusedsc/common/gpu/depthwise_source.h"

namespace fusedsc::gpu {

struct DepthwiseWeightGradientParameters {
  ConstDeviceTensor x, grad_y;
  DevicePrologue prologue;
  DeviceGradientPrologue gradient_prologue;
  void* partials = nullptr;  ///< [split][tap..., bias][channel]
  DepthwiseShape shape;
  DepthwiseWork work;
  Divisor by_tap_groups;  ///< of depthwise_weight_gradient_taps
};

/// Rows of x meet the rows of grad_y whose windows cover them; those stay in rotating registers, the sums in others.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, bool kSeams>
FUSEDSC_DEVICE void depthwise_weight_gradient_rows(const DepthwiseWeightGradientParameters& p) {
  using A = Accumulator<T>;
  constexpr int kTaps = kKernel * kKernel, kRing = kAhead + 1;
  constexpr int kInputColumns = (kColumns - 1) * kStride + kKernel;
  constexpr int kLive = (kKernel - 1) / kStride + 1, kPeriod = common_multiple(kLive * kStride, kRing);
  const DepthwiseShare share(p.work);
  const int channel = share.channel(p.work, kChannels);
  const bool idle = share.is_idle(p.work, channel, p.shape.channels);
  const int safe_channel = idle ? 0 : channel;

  A sums[(kTaps + 1) * kChannels];
#pragma unroll
  for (int i = 0; i < (kTaps + 1) * kChannels; ++i) sums[i] = 0;
  ActivationSource<T, kChannels, kInputColumns, kSeams> x;
  x.set_channel(p.prologue, safe_channel);
  GradientSource<T, kChannels, kColumns, kSeams> grad_y;
  grad_y.set_channel(p.gradient_prologue, safe_channel);
  const int input_rows = (p.work.strip_rows - 1) * kStride + kKernel;  // the same for all threads: no divergence

  for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
    const DepthwiseStrip strip(p.work, item);
    const int column = strip.column_group * kColumns, first_row = strip.row * kStride - p.shape.padding_top;
    // Rows beyond the strip count as outside of the image: the neighbour sums them.
    x.window.aim(p.x, strip.image, channel, first_row, column * kStride - p.shape.padding_left,
                 least(p.shape.input_height, first_row + input_rows), p.shape.input_width);
    grad_y.aim(p.grad_y, p.gradient_prologue, strip.image, channel, strip.row, column,
               least(p.shape.output_height, strip.row + p.work.strip_rows), p.shape.output_width);
    typename decltype(x)::Row x_ring[kRing];
    typename decltype(grad_y)::Row grad_ring[kRing];
    const auto load = [&](int r) {
      x.load(x_ring[r % kRing]);
      if (r % kStride == 0) grad_y.load(grad_ring[r % kRing]);
    };
#pragma unroll
    for (int r = 0; r < kAhead; ++r) load(r);
    A g[kLive][kColumns * kChannels] = {};
    for (int first = 0; first < input_rows; first += kPeriod) {
#pragma unroll
      for (int r = 0; r < kPeriod; ++r) {  // without branches
        load(r + kAhead);
        if (r % kStride == 0) {
          A(&fresh)[kColumns * kChannels] = g[r / kStride % kLive];
          grad_y.widen(grad_ring[r % kRing], fresh);
#pragma unroll
          for (int i = 0; i < kColumns * kChannels; ++i) sums[kTaps * kChannels + i % kChannels] += fresh[i];
        }
        A row[kInputColumns * kChannels];
        x.widen(x_ring[r % kRing], row);
#pragma unroll
        for (int kh = 0; kh < kKernel; ++kh) {
          const int ago = r - kh + kKernel * kPeriod;
          if (ago % kStride != 0) continue;
          const A(&gradient)[kColumns * kChannels] = g[ago / kStride % kLive];
#pragma unroll
          for (int kw = 0; kw < kKernel; ++kw) {
#pragma unroll
            for (int i = 0; i < kColumns * kChannels; ++i) {
              const int c = i / kChannels, v = i % kChannels;
              sums[(kh * kKernel + kw) * kChannels + v] += gradient[i] * row[(c * kStride + kw) * kChannels + v];
            }
          }
        }
      }
    }
  }

  A* partial = static_cast<A*>(p.partials) + static_cast<std::int64_t>(share.split) * (kTaps + 1) * p.shape.channels;
  const auto leave = [&](int i, A total) {
    if (!idle) partial[static_cast<std::int64_t>(i / kChannels) * p.shape.channels + channel + i % kChannels] = total;
  };
#pragma unroll
  for (int kh = 0; kh < kKernel; ++kh) {
    constexpr int kRow = kKernel * kChannels;
    add_item_lanes<kRow>(p.work, share, sums + kh * kRow, [&](int i, A total) { leave(kh * kRow + i, total); });
  }
  constexpr int kBias = kTaps * kChannels;
  add_item_lanes<kChannels>(p.work, share, sums + kBias, [&](int v, A total) { leave(kBias + v, total); });
}

/// Any window, any channel multiplier: each block sums kTapGroup taps of a kernel row, reading rows of x and grad_y.
template <class T, int kChannels, int kTapGroup>
FUSEDSC_DEVICE void depthwise_weight_gradient_taps(const DepthwiseWeightGradientParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseShape& shape = p.shape;
  unsigned tap_group = block_index();
  const DepthwiseShare share(p.work, p.by_tap_groups.divide(tap_group));
  const int groups_per_row = (shape.kernel_width + kTapGroup - 1) / kTapGroup;
  const int kh = static_cast<int>(tap_group) / groups_per_row;
  const int first_kw = static_cast<int>(tap_group) % groups_per_row * kTapGroup;
  const int channel = share.channel(p.work, kChannels);
  const bool idle = share.is_idle(p.work, channel, shape.channels);
  const int safe_channel = idle ? 0 : channel, input_channel = safe_channel / shape.multiplier;

  A sums[(kTapGroup + 1) * kChannels];
#pragma unroll
  for (int i = 0; i < (kTapGroup + 1) * kChannels; ++i) sums[i] = 0;
  ActivationSource<T, kChannels, 1, true> x;
  x.set_channel(p.prologue, input_channel);
  GradientSource<T, kChannels, 1, true> grad_y;
  grad_y.set_channel(p.gradient_prologue, safe_channel);

  for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
    const DepthwiseStrip strip(p.work, item);  // of one position
    const int h = strip.row * shape.stride_height + kh * shape.dilation_height - shape.padding_top;
    grad_y.aim(p.grad_y, p.gradient_prologue, strip.image, channel, strip.row, strip.column_group, shape.output_height,
               shape.output_width);
    typename decltype(grad_y)::Row loaded;
    grad_y.load(loaded);
    A g[kChannels];
    grad_y.widen(loaded, g);
#pragma unroll
    for (int v = 0; v < kChannels; ++v) sums[kTapGroup * kChannels + v] += g[v];
#pragma unroll
    for (int tap = 0; tap < kTapGroup; ++tap) {
      if (first_kw + tap >= shape.kernel_width) continue;
      const int w =
          strip.column_group * shape.stride_width + (first_kw + tap) * shape.dilation_width - shape.padding_left;
      x.window.aim(p.x, strip.image, input_channel, h, w, shape.input_height, shape.input_width);
      typename decltype(x)::Row row;
      x.load(row);
      A value[kChannels];
      x.widen(row, value);
#pragma unroll
      for (int v = 0; v < kChannels; ++v) sums[tap * kChannels + v] += g[v] * value[v];
    }
  }

  const int taps = shape.kernel_height * shape.kernel_width;
  A* partial = static_cast<A*>(p.partials) + static_cast<std::int64_t>(share.split) * (taps + 1) * shape.channels;
#pragma unroll
  for (int tap = 0; tap <= kTapGroup; ++tap) {
    const bool is_bias = tap == kTapGroup;
    const bool wanted = is_bias ? tap_group == 0 : first_kw + tap < shape.kernel_width;
    const int place = is_bias ? taps : kh * shape.kernel_width + first_kw + tap;
    add_item_lanes<kChannels>(p.work, share, sums + tap * kChannels, [&](int v, A total) {
      if (!idle && wanted) partial[static_cast<std::int64_t>(place) * shape.channels + channel + v] = total;
    });
  }
}

}  // namespace fusedsc::gpu
