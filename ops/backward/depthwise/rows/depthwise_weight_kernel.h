/// Depthwise convolution on GPUs, weight and bias gradients: each block sums its share of the images, and
/// sum_partials (partials_kernel.h) adds the blocks' sums in their order.
#pragma once

#include "fusedsc/backward/depthwise/rows/depthwise_weight_results.h"
#include "fusedsc/common/gpu/sums/block_sums.h"
#include "fusedsc/forward/depthwise/depthwise_shape.h"
#include "fusedsc/forward/depthwise/rows/depthwise_rows.h"

namespace fusedsc::gpu {

/// The results: where there are no partial sums.
struct DepthwiseWeightGradientParameters : DepthwiseWeightResults {
  ConstDeviceTensor x, grad_y;
  DevicePrologue prologue;
  DeviceGradientPrologue gradient_prologue;
  void* partials = nullptr;  ///< [split][tap..., bias][channel]; null: there is one split, whose sums are the gradients
  DepthwiseShape shape;
  ItemWork work;
  Divisor by_tap_groups;  ///< of depthwise_weight_gradient_taps
};

/// A block's sum of a tap (`row` of the partial sums; after the taps that of the bias), to where it belongs.
template <class T>
FUSEDSC_DEVICE void leave_weight_gradient(const DepthwiseWeightGradientParameters& p, unsigned split, int row,
                                          int channel, Accumulator<T> sum) {
  const int taps = p.shape.kernel_height * p.shape.kernel_width;
  if (p.partials != nullptr) {
    const std::int64_t at = static_cast<std::int64_t>(split) * (taps + 1) + row;
    static_cast<Accumulator<T>*>(p.partials)[at * p.shape.channels + channel] = sum;
  } else {
    leave_weight_gradient<T>(p, taps, p.shape.kernel_width, row, channel, sum);
  }
}

/// Rows of x meet the rows of grad_y whose windows cover them; those stay in rotating registers, the sums in others.
template <class T, int kKernel, int kStride, int kChannels, int kColumns, int kAhead, bool kFused>
struct DepthwiseWeightGradientRows {
  using A = Accumulator<T>;
  static constexpr int kTaps = kKernel * kKernel, kInputColumns = (kColumns - 1) * kStride + kKernel;
  static constexpr int kLive = (kKernel - 1) / kStride + 1;
  static constexpr int kPeriod = common_multiple(kLive * kStride, kAhead + 1);
  static constexpr bool kInMemory = kRowsInMemory<T, kChannels, kKernel>;
  using InputSource = ActivationSource<T, kChannels, kInputColumns, kFused, kInMemory>;
  using GradSource = GradientSource<T, kChannels, kColumns, kFused, kInMemory>;
  using Inputs = RowsAhead<InputSource, kAhead>;
  using Grads = RowsAhead<GradSource, kAhead>;

  static constexpr int kBytes = Inputs::kBytes + Grads::kBytes;

  FUSEDSC_DEVICE static void run(const DepthwiseWeightGradientParameters& p) {
    const ItemShare share(p.work);
    const int channel = share.channel(p.work, kChannels);
    const bool idle = share.is_idle(p.work, channel, p.shape.channels);
    const int safe_channel = idle ? 0 : channel;

    A sums[(kTaps + 1) * kChannels];
#pragma unroll
    for (int i = 0; i < (kTaps + 1) * kChannels; ++i) sums[i] = 0;
    InputSource x;
    x.set_channel(p.prologue, safe_channel);
    GradSource grad_y;
    grad_y.set_channel(p.gradient_prologue, safe_channel);
    Inputs inputs(0);
    Grads grads(Inputs::kBytes);
    const auto ask = [&](int r) {
      inputs.ask(x, r);
      if (r % kStride == 0) grads.ask(grad_y, r);
    };
    const int input_rows = (p.work.strip_rows - 1) * kStride + kKernel;  // the same for all threads: no divergence

    for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
      const ItemStrip strip(p.work, item);
      const int column = strip.column_group * kColumns, first_row = strip.row * kStride - p.shape.padding_top;
      // Rows beyond the strip count as outside of the image: the neighbour sums them.
      x.window.aim(p.x, strip.image, channel, first_row, column * kStride - p.shape.padding_left,
                   least(p.shape.input_height, first_row + input_rows), p.shape.input_width);
      grad_y.aim(p.grad_y, p.gradient_prologue, strip.image, channel, strip.row, column,
                 least(p.shape.output_height, strip.row + p.work.strip_rows), p.shape.output_width);
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        ask(r);
        commit_copies();
      }
      A g[kLive][kColumns * kChannels] = {};
      for (int first = 0; first < input_rows; first += kPeriod) {
#pragma unroll
        for (int r = 0; r < kPeriod; ++r) {
          if constexpr (kInMemory) {
            if (first + r >= input_rows) break;
            if (first + r + kAhead < input_rows) ask(r + kAhead);
            commit_copies();
            wait_for_copies<kAhead>();
          } else {  // without branches
            ask(r + kAhead);
          }
          if (r % kStride == 0) {
            A(&fresh)[kColumns * kChannels] = g[r / kStride % kLive];
            grad_y.widen(grads.take(grad_y, r), fresh);
#pragma unroll
            for (int i = 0; i < kColumns * kChannels; ++i) sums[kTaps * kChannels + i % kChannels] += fresh[i];
          }
          A row[kInputColumns * kChannels];
          x.widen(inputs.take(x, r), row);
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

    const int first_channel = share.first_channel(p.work, kChannels);
    add_item_lanes<(kTaps + 1) * kChannels>(p.work, share, sums, [&](int lane, int i, A total) {
      const int to = first_channel + lane * kChannels + i % kChannels;
      if (to < p.shape.channels) leave_weight_gradient<T>(p, share.split, i / kChannels, to, total);
    });
  }
};

/// Any window, any channel multiplier, where no tile of it fits shared memory (depthwise_windows_weight_kernel.h): each
/// block sums kTapGroup taps of a kernel row, reading rows of x and grad_y.
template <class T, int kChannels, int kTapGroup>
FUSEDSC_DEVICE void depthwise_weight_gradient_taps(const DepthwiseWeightGradientParameters& p) {
  using A = Accumulator<T>;
  const DepthwiseShape& shape = p.shape;
  unsigned tap_group = block_index();
  const ItemShare share(p.work, p.by_tap_groups.divide(tap_group));
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
    const ItemStrip strip(p.work, item);  // of one position
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
#pragma unroll
  for (int tap = 0; tap <= kTapGroup; ++tap) {
    const bool is_bias = tap == kTapGroup;
    const bool wanted = is_bias ? tap_group == 0 : first_kw + tap < shape.kernel_width;
    const int place = is_bias ? taps : kh * shape.kernel_width + first_kw + tap;
    add_item_lanes<kChannels>(p.work, share, sums + tap * kChannels, [&](int lane, int v, A total) {
      const int to = share.first_channel(p.work, kChannels) + lane * kChannels + v;
      if (wanted && to < shape.channels) leave_weight_gradient<T>(p, share.split, place, to, total);
    });
  }
}

}  // namespace fusedsc::gpu
