/// Depthwise convolution of small problems on GPUs, forward: see depthwise_direct.h.
#pragma once

#include "fusedsc/common/gpu/tensors/tensor.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/direct/depthwise_direct.h"

namespace fusedsc::gpu {

struct DepthwiseDirectParameters {
  ConstCompactTensor x;
  const void *weight = nullptr, *bias = nullptr;  ///< the weight dense, from its lowest address on
  CompactTensor y;
  DirectWork work;
  int height = 0, width = 0, output_height = 0;  ///< of images of x, and of y
  int stride_height = 1, stride_width = 1;
  /// 1, or -1 where the weight is rotated by 180°: its taps come in the order that they have in memory, and so rows and
  /// columns of x, and a thread's rows of y, from the last to the first.
  int step = 1;
  int first_row = 0, first_column = 0;  ///< of x, of the first tap of the first thread
};

/// kStride: from one of a thread's rows of y to the next; there may be one.
template <class T, int kKernel, int kStride, int kChannels, int kRows, bool kChannelsLast>
struct DepthwiseDirect {
  using A = Accumulator<T>;
  using Weights = DirectWeights<T, kKernel * kKernel, kChannels, kChannelsLast>;
  using X = DirectWindow<T, kChannels, (kRows - 1) * kStride + kKernel, kKernel>;

  FUSEDSC_DEVICE static void run(const DepthwiseDirectParameters& p) {
    let_next_kernel_start();
    const DirectPlace<kChannels, kRows, kChannelsLast> place(p.work);
    Weights weights(p.weight, p.work, place);
    X x;
    x.aim(p.x, p.x.offset(place.image, place.channel), place.row * p.stride_height + p.first_row,
          place.column * p.stride_width + p.first_column, p.step, p.height, p.width);
    const std::uint32_t bits = x.bits() | weights.bits();
    keep_order(bits);
    wait_for_previous_kernel();
    x.load(p.x);
    weights.load();
    A bias[kChannels], y[kRows][kChannels];
    load_channels(p.bias, place.channel, A(0), bias, T());
    keep_order(bits);
    weights.share();
    x.mask();
#pragma unroll
    for (int i = 0; i < kRows * kChannels; ++i) y[i / kChannels][i % kChannels] = bias[i % kChannels];
    weights.for_each(place.channel_lane, [&](int v, int tap, A weight) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) y[r][v] += x.at(r * kStride + tap / kKernel, tap % kKernel, v) * weight;
    });
    T* to = static_cast<T*>(p.y.data) +
            (p.y.offset(place.image, place.channel) + static_cast<std::uint32_t>(place.row) * p.y.row +
             static_cast<std::uint32_t>(place.column) * p.y.column);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int below = p.step > 0 ? r : kRows - 1 - r;
      if (place.is_idle || place.row + below >= p.output_height) continue;
      store<kChannels>(y[r], to + static_cast<std::uint32_t>(below) * p.y.row);
    }
  }
};

}  // namespace fusedsc::gpu
