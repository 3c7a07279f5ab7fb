/// Pointwise convolution on GPUs, input gradient: what happens to finished gradients where a tensor's elements are no
/// runs.
#pragma once

#include "fusedsc/backward/pointwise/tiles/pointwise_input_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_elements.h"

namespace fusedsc::gpu {

/// As PointwiseInputGradientSink.
template <class T, class Sweep>
class PointwiseInputGradientElementSink {
 public:
  using A = Accumulator<T>;
  static constexpr int kMemoryBytes = ChannelValues<Sweep, 3>::kMemoryBytes + ChannelValues<Sweep, 2>::kMemoryBytes;
  static constexpr std::size_t kFinishBytes = Sweep::kPixelRows ? kMergedItemsBytes<Sweep, 2> : 0;

  FUSEDSC_DEVICE PointwiseInputGradientElementSink(const PointwiseInputGradientParameters& p,
                                                   const PointwiseShare& share, int first_channel,
                                                   unsigned char* memory)
      : p_(p),
        share_(share),
        first_channel_(first_channel),
        channels_(p.product.channels - first_channel),
        x_(p.x, share.group, first_channel),
        grad_add_(p.grad_add, share.group, first_channel),
        grad_x_(p.grad_x, share.group, first_channel),
        coefficients_(memory),
        sums_(memory + ChannelValues<Sweep, 3>::kMemoryBytes) {
    const int first = share.group * p.product.channels + first_channel;
    coefficients_.set(kScale, p.prologue.scale, first, channels_, A(1), A());
    coefficients_.set(kShift, p.prologue.shift, first, channels_, A(0), A());
    coefficients_.set(kMean, p.mean, first, channels_, A(0), A());
#pragma unroll
    for (int i = 0; i < 2; ++i) sums_.set(i, nullptr, 0, 0, A(0), A());
  }

  FUSEDSC_DEVICE void finish_tile(const A* sums, int first_pixel, int pixels) {
    if (x_) x_.aim(first_pixel);
    if (grad_add_) grad_add_.aim(first_pixel);
    grad_x_.aim(first_pixel);
    A x[Sweep::kTogether][kBatch];
    const auto prepare = [&](int i, int batch, int channel, int count) {
      if (x_) x_.load(batch, channel, count, x[i]);
    };
    Sweep::for_each_batch(
        sums, pixels, channels_, prepare, [&](int i, int batch, int channel, A(&g)[kBatch], int count) {
          if (x_) {
            A z[kBatch];
            const A scale = coefficients_.get(kScale, channel), shift = coefficients_.get(kShift, channel);
#pragma unroll
            for (int v = 0; v < kBatch; ++v) z[v] = x[i][v] * scale + shift;
            activate_backward(p_.prologue.activation, z, g);
            if (p_.partials != nullptr) add_sums(channel, g, x[i], count);
          }
          if (grad_add_) {
            A added[kBatch];
            grad_add_.load(batch, channel, count, added);
#pragma unroll
            for (int v = 0; v < kBatch; ++v) g[v] += added[v];
          }
          grad_x_.store(batch, channel, count, g);
        });
  }

  template <std::size_t kBytes>
  FUSEDSC_DEVICE void finish(SharedMemory<A, kBytes> memory) {
    if (p_.partials == nullptr) return;
    block_barrier();  // of an empty batch nobody met one
    const int all_channels = p_.product.channels * p_.product.groups;
    A* row = static_cast<A*>(p_.partials) + static_cast<std::int64_t>(share_.split) * 2 * all_channels +
             share_.group * p_.product.channels + first_channel_;
    const auto keep = [&](int channel, const A(&sums)[2]) {
      if (channel >= channels_) return;
      row[channel] = sums[0];
      row[all_channels + channel] = sums[1];
    };
    if constexpr (Sweep::kPixelRows) {
      const A values[1][2] = {{sums_.get(0, 0), sums_.get(1, 0)}};
      merge_items<Sweep>(
          memory, values,
          [](A(&to)[2], const A(&from)[2]) {
            to[0] += from[0];
            to[1] += from[1];
          },
          keep);
    } else if (gathers_row<Sweep>()) {
      for (int batch = 0; batch < Sweep::kBatches; ++batch) {
        const int channel = Sweep::channel_of(batch);
        const A values[2] = {sums_.get(0, channel), sums_.get(1, channel)};
        keep(channel, values);
      }
    }
  }

 private:
  static constexpr int kBatch = Sweep::kBatch, kScale = 0, kShift = 1, kMean = 2;

  FUSEDSC_DEVICE void add_sums(int channel, const A (&g)[kBatch], const A (&x)[kBatch], int count) {
    const A mean = coefficients_.get(kMean, channel);
    A added[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const A kept = i < count ? g[i] : A(0);
      added[0] += kept;
      added[1] += kept * (x[i] - mean);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (!Sweep::kPixelRows) added[i] = wave_sum(added[i], 32);
      if (Sweep::kPixelRows || gathers_row<Sweep>()) sums_.put(i, channel, sums_.get(i, channel) + added[i]);
    }
  }

  const PointwiseInputGradientParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  ElementPlaces<const T, Sweep, PointwiseMatrix> x_, grad_add_;
  ElementPlaces<T, Sweep, OutputMatrix> grad_x_;
  ChannelValues<Sweep, 3> coefficients_;
  ChannelValues<Sweep, 2> sums_;
};

template <class T, class Tile, bool kPixelRows, bool kFused>
using InputElementsProduct = PointwiseProduct<T, Tile, kPixelRows, true, kFused, true>;
template <class T, class Tile, bool kPixelRows, bool kFused>
using InputElementsSink =
    PointwiseInputGradientElementSink<T, typename InputElementsProduct<T, Tile, kPixelRows, kFused>::Sweep>;

/// kFused: there may be any; without, the gradient is what is multiplied.
template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_DEVICE void pointwise_input_gradient_elements(const PointwiseInputGradientParameters& p) {
  using Product = InputElementsProduct<T, Tile, kPixelRows, kFused>;
  Product::template run<InputElementsSink<T, Tile, kPixelRows, kFused>>(p);
}

template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_HOST_DEVICE constexpr std::size_t input_elements_memory_bytes(bool rows_other, bool cols_other) {
  using Product = InputElementsProduct<T, Tile, kPixelRows, kFused>;
  return Product::template memory_bytes<InputElementsSink<T, Tile, kPixelRows, kFused>>(rows_other, cols_other);
}

}  // namespace fusedsc::gpu
