/// Pointwise convolution on GPUs, forward: what happens to finished outputs where a tensor's elements are no runs.
#pragma once

#include "fusedsc/forward/pointwise/tiles/pointwise_elements.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_kernel.h"

namespace fusedsc::gpu {

/// As PointwiseSink.
template <class T, class Sweep>
class PointwiseElementSink {
 public:
  using A = Accumulator<T>;
  static constexpr int kMemoryBytes = ChannelValues<Sweep, 3>::kMemoryBytes + ChannelValues<Sweep, 3>::kMemoryBytes;
  static constexpr std::size_t kFinishBytes = Sweep::kPixelRows ? kMergedItemsBytes<Sweep, 3> : 0;

  FUSEDSC_DEVICE PointwiseElementSink(const PointwiseParameters& p, const PointwiseShare& share, int first_channel,
                                      unsigned char* memory)
      : p_(p),
        share_(share),
        first_channel_(first_channel),
        channels_(p.product.channels - first_channel),
        y_(p.y, share.group, first_channel),
        residual_(p.residual, share.group, first_channel),
        coefficients_(memory),
        moments_(memory + ChannelValues<Sweep, 3>::kMemoryBytes) {
    const int first = share.group * p.product.channels + first_channel;
    coefficients_.set(kBias, p.bias, first, channels_, A(0), T());
    coefficients_.set(kScale, p.epilogue.scale, first, channels_, A(1), A());
    coefficients_.set(kShift, p.epilogue.shift, first, channels_, A(0), A());
#pragma unroll
    for (int i = 0; i < 3; ++i) moments_.set(i, nullptr, 0, 0, A(0), A());
  }

  FUSEDSC_DEVICE void finish_tile(const A* sums, int first_pixel, int pixels) {
    y_.aim(first_pixel);
    if (residual_) residual_.aim(first_pixel);
    A added[Sweep::kTogether][kBatch];
    const auto prepare = [&](int i, int batch, int channel, int count) {
      if (residual_) residual_.load(batch, channel, count, added[i]);
    };
    Sweep::for_each_batch(
        sums, pixels, channels_, prepare, [&](int i, int batch, int channel, A(&y)[kBatch], int count) {
          const A bias = coefficients_.get(kBias, channel);
#pragma unroll
          for (int v = 0; v < kBatch; ++v) y[v] += bias;
          if (p_.partials != nullptr) {
            add_moments(channel, y, count, least(pixels, Sweep::kPixels));
          } else {
            const A scale = coefficients_.get(kScale, channel), shift = coefficients_.get(kShift, channel);
#pragma unroll
            for (int v = 0; v < kBatch; ++v) y[v] = y[v] * scale + shift;
            activate(p_.epilogue.activation, y);
            if (residual_) {
#pragma unroll
              for (int v = 0; v < kBatch; ++v) y[v] += added[i][v];
            }
          }
          y_.store(batch, channel, count, y);
        });
  }

  template <std::size_t kBytes>
  FUSEDSC_DEVICE void finish(SharedMemory<A, kBytes> memory) {
    if (p_.partials == nullptr) return;
    block_barrier();  // of an empty batch nobody met one
    const int all_channels = p_.product.channels * p_.product.groups;
    A* row = static_cast<A*>(p_.partials) + static_cast<std::int64_t>(share_.split) * 3 * all_channels +
             share_.group * p_.product.channels + first_channel_;
    const auto keep = [&](int channel, const A(&merged)[3]) {
      if (channel >= channels_) return;
#pragma unroll
      for (int i = 0; i < 3; ++i) row[i * all_channels + channel] = merged[i];
    };
    if constexpr (Sweep::kPixelRows) {
      const A values[1][3] = {{moments_.get(0, 0), moments_.get(1, 0), moments_.get(2, 0)}};
      merge_items<Sweep>(
          memory, values,
          [](A(&to)[3], const A(&from)[3]) { merge_moments(to[2], to[0], to[1], from[2], from[0], from[1]); }, keep);
    } else if (gathers_row<Sweep>()) {
      for (int batch = 0; batch < Sweep::kBatches; ++batch) {
        const int channel = Sweep::channel_of(batch);
        const A values[3] = {moments_.get(0, channel), moments_.get(1, channel), moments_.get(2, channel)};
        keep(channel, values);
      }
    }
  }

 private:
  static constexpr int kBatch = Sweep::kBatch, kBias = 0, kScale = 1, kShift = 2;

  /// Mean, M2, count. `pixels`: of the tile's row, which 32 threads go over together.
  FUSEDSC_DEVICE void add_moments(int channel, const A (&y)[kBatch], int count, int pixels) {
    const A number = static_cast<A>(Sweep::kPixelRows ? count : pixels);
    const auto sum_of = [](A value) { return Sweep::kPixelRows ? value : wave_sum(value, 32); };
    A sum = 0, deviations = 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum += i < count ? y[i] : A(0);
    const A mean = sum_of(sum) / number;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const A deviation = i < count ? y[i] - mean : A(0);
      deviations += deviation * deviation;
    }
    deviations = sum_of(deviations);
    if (Sweep::kPixelRows ? count == 0 : !gathers_row<Sweep>()) return;
    A all[3] = {moments_.get(0, channel), moments_.get(1, channel), moments_.get(2, channel)};
    merge_moments(all[2], all[0], all[1], number, mean, deviations);
#pragma unroll
    for (int i = 0; i < 3; ++i) moments_.put(i, channel, all[i]);
  }

  const PointwiseParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  ElementPlaces<T, Sweep, OutputMatrix> y_;
  ElementPlaces<const T, Sweep, PointwiseMatrix> residual_;
  ChannelValues<Sweep, 3> coefficients_, moments_;
};

template <class T, class Tile, bool kPixelRows, bool kFused>
using ForwardElementsProduct = PointwiseProduct<T, Tile, kPixelRows, false, kFused, true>;
template <class T, class Tile, bool kPixelRows, bool kFused>
using ForwardElementsSink =
    PointwiseElementSink<T, typename ForwardElementsProduct<T, Tile, kPixelRows, kFused>::Sweep>;

/// kFused: there may be a prologue; without, there is nothing but a bias.
template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_DEVICE void pointwise_forward_elements(const PointwiseParameters& p) {
  using Product = ForwardElementsProduct<T, Tile, kPixelRows, kFused>;
  Product::template run<ForwardElementsSink<T, Tile, kPixelRows, kFused>>(p);
}

template <class T, class Tile, bool kPixelRows, bool kFused>
std::size_t forward_elements_memory_bytes(bool rows_other, bool cols_other) {
  using Product = ForwardElementsProduct<T, Tile, kPixelRows, kFused>;
  return Product::template memory_bytes<ForwardElementsSink<T, Tile, kPixelRows, kFused>>(rows_other, cols_other);
}

}  // namespace fusedsc::gpu
