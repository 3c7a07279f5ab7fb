/// BatchNorm between the convolutions, on GPUs: the arithmetic per channel, a thread each, and the two passes over
/// whole tensors, which share their work out as the depthwise kernels do (item_work.h), in strips of one row.
#pragma once

#include "fusedsc/common/gpu/activation.h"
#include "fusedsc/common/gpu/normaliser.h"
#include "fusedsc/common/gpu/sums/block_sums.h"
#include "fusedsc/common/gpu/tensors/positions.h"

namespace fusedsc::gpu {

// -------------------------------------------------------------------------------------------------------- per channel

inline constexpr int kChannelThreads = 128;

FUSEDSC_DEVICE int own_channel() { return static_cast<int>(block_index()) * kChannelThreads + thread_index(); }

struct BatchNormFinalizeParameters {
  int channels = 0;
  const void *weight = nullptr, *bias = nullptr, *mean = nullptr, *invstd = nullptr;
  void *scale = nullptr, *shift = nullptr;
  const void* m2 = nullptr;  ///< null in eval mode
  NormaliserParameters normaliser;
};

template <class A>
FUSEDSC_DEVICE void batch_norm_finalize(const BatchNormFinalizeParameters& p) {
  const int c = own_channel();
  if (c >= p.channels) return;
  const A mean = value_or(p.mean, c, A(0));
  if (p.m2 != nullptr) {
    return normalise(p.normaliser, OwnNormaliser<A>(p.normaliser, c), c, mean, value_or(p.m2, c, A(0)));
  }
  const A scale = value_or(p.weight, c, A(1)) * value_or(p.invstd, c, A(1));
  put(p.shift, c, value_or(p.bias, c, A(0)) - mean * scale);
  put(p.scale, c, scale);
}

// ------------------------------------------------------------------------------------------------- over whole tensors

/// values *= image_scale[image], where there is one.
template <class A, int kCount>
FUSEDSC_DEVICE void scale_image(const void* image_scale, int image, A (&values)[kCount]) {
  if (image_scale == nullptr) return;
  const A scale = static_cast<const A*>(image_scale)[image];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] *= scale;
}

struct BatchNormApplyParameters {
  ConstDeviceTensor x, residual;
  const void *scale = nullptr, *shift = nullptr, *image_scale = nullptr;
  Activation activation = Activation::identity;
  DeviceTensor out;
  int channels = 0, width = 0;
  bool join_columns = false;  ///< in all of the tensors
  ItemWork work;
};

template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void batch_norm_apply(const BatchNormApplyParameters& p) {
  using A = Accumulator<T>;
  const ItemShare share(p.work);
  const int channel = share.channel(p.work, kChannels);
  if (share.is_idle(p.work, channel, p.channels)) return;
  A scale[kChannels], shift[kChannels];
  load_channels(p.scale, channel, A(1), scale, A());
  load_channels(p.shift, channel, A(0), shift, A());

  for (std::uint32_t item = share.item; item < p.work.items; item += share.step) {
    const ItemStrip strip(p.work, item);
    const int column = strip.column_group * kColumns, columns = least(p.width - column, kColumns);
    A y[kColumns * kChannels];
    load_positions<T, kChannels, kColumns>(p.x, p.x.offset(strip.image, channel, strip.row, column), columns,
                                           p.join_columns, y);
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) y[i] = y[i] * scale[i % kChannels] + shift[i % kChannels];
    activate(p.activation, y);
    scale_image(p.image_scale, strip.image, y);
    if (p.residual.data != nullptr) {
      A added[kColumns * kChannels];
      load_positions<T, kChannels, kColumns>(p.residual, p.residual.offset(strip.image, channel, strip.row, column),
                                             columns, p.join_columns, added);
#pragma unroll
      for (int i = 0; i < kColumns * kChannels; ++i) y[i] += added[i];
    }
    store_positions<T, kChannels, kColumns>(y, p.out, p.out.offset(strip.image, channel, strip.row, column), columns,
                                            p.join_columns);
  }
}

struct BatchNormReduceParameters {
  ConstDeviceTensor x, grad_y;
  const void *scale = nullptr, *shift = nullptr, *image_scale = nullptr, *mean = nullptr;
  Activation activation = Activation::identity;
  DeviceTensor grad;
  int channels = 0, width = 0;
  bool join_columns = false;  ///< in all of the tensors
  void* partials = nullptr;   ///< [split][sum of g, of g*(x - mean)][channel]; null: no sums
  ItemWork work;
};

/// kWrites: g itself, too.
template <class T, int kChannels, int kColumns, bool kWrites>
FUSEDSC_DEVICE void batch_norm_reduce(const BatchNormReduceParameters& p) {
  using A = Accumulator<T>;
  const ItemShare share(p.work);
  const int channel = share.channel(p.work, kChannels);
  const bool idle = share.is_idle(p.work, channel, p.channels);
  const int safe_channel = idle ? 0 : channel;
  A scale[kChannels], shift[kChannels], mean[kChannels];
  load_channels(p.scale, safe_channel, A(1), scale, A());
  load_channels(p.shift, safe_channel, A(0), shift, A());
  load_channels(p.mean, safe_channel, A(0), mean, A());
  A sums[2 * kChannels] = {};  // of g, then of g*(x - mean)

  for (std::uint32_t item = share.item; item < p.work.items && !idle; item += share.step) {
    const ItemStrip strip(p.work, item);
    const int column = strip.column_group * kColumns, columns = least(p.width - column, kColumns);
    A x[kColumns * kChannels], g[kColumns * kChannels], z[kColumns * kChannels];
    load_positions<T, kChannels, kColumns>(p.x, p.x.offset(strip.image, channel, strip.row, column), columns,
                                           p.join_columns, x);
    load_positions<T, kChannels, kColumns>(p.grad_y, p.grad_y.offset(strip.image, channel, strip.row, column), columns,
                                           p.join_columns, g);
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) z[i] = x[i] * scale[i % kChannels] + shift[i % kChannels];
    activate_backward(p.activation, z, g);
    if constexpr (kWrites) {
      scale_image(p.image_scale, strip.image, g);
      store_positions<T, kChannels, kColumns>(g, p.grad, p.grad.offset(strip.image, channel, strip.row, column),
                                              columns, p.join_columns);
    }
#pragma unroll
    for (int i = 0; i < kColumns * kChannels; ++i) {  // g is zero beyond the image
      sums[i % kChannels] += g[i];
      sums[kChannels + i % kChannels] += g[i] * (x[i] - mean[i % kChannels]);
    }
  }
  if (kWrites && p.partials == nullptr) return;
  A* rows = static_cast<A*>(p.partials) + static_cast<std::int64_t>(share.split) * 2 * p.channels;
  const int first_channel = share.first_channel(p.work, kChannels);
  add_item_lanes<2 * kChannels>(p.work, share, sums, [&](int lane, int i, A total) {
    const int to = first_channel + lane * kChannels + i % kChannels;
    if (to < p.channels) rows[i / kChannels * p.channels + to] = total;
  });
}

}  // namespace fusedsc::gpu
