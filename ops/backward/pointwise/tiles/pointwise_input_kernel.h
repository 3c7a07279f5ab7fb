/// Pointwise convolution on GPUs, input gradient: what happens to finished gradients.
#pragma once

#include "fusedsc/forward/depthwise/rows/depthwise_source.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_product.h"

namespace fusedsc::gpu {

struct PointwiseInputGradientParameters {
  PointwiseProductParameters product;  ///< of grad_y; its channels are those of x
  PointwiseMatrix x;                   ///< null data: no prologue
  DevicePrologue prologue;
  const void* mean = nullptr;
  PointwiseMatrix grad_add;
  OutputMatrix grad_x;
  void* partials = nullptr;  ///< of the sums, where they are wanted: [split][grad, grad_times_centered][channel]
};

/// What threads have summed of their items, {grad, grad_times_centered}, into partials, if there are any.
template <class Sweep, class A, std::size_t kBytes>
FUSEDSC_DEVICE void leave_sums(const PointwiseInputGradientParameters& p, const PointwiseShare& share,
                               int first_channel, SharedMemory<A, kBytes> memory, const A (&sums)[Sweep::kItems][2]) {
  if (p.partials == nullptr) return;
  const int all_channels = p.product.channels * p.product.groups, channels = p.product.channels - first_channel;
  A* row = static_cast<A*>(p.partials) + static_cast<std::int64_t>(share.split) * 2 * all_channels +
           share.group * p.product.channels + first_channel;
  merge_items<Sweep>(
      memory, sums,
      [](A(&to)[2], const A(&from)[2]) {
        to[0] += from[0];
        to[1] += from[1];
      },
      [&](int channel, const A(&merged)[2]) {
        if (channel >= channels) return;
        row[channel] = merged[0];
        row[all_channels + channel] = merged[1];
      });
}

/// The activation's derivative, sums, a residual's gradient, and into memory.
template <class T, class Sweep, bool kFused>
class PointwiseInputGradientSink {
 public:
  using A = Accumulator<T>;
  static constexpr std::size_t kFinishBytes = kFused ? kMergedItemsBytes<Sweep, 2> : 0;

  FUSEDSC_DEVICE PointwiseInputGradientSink(const PointwiseInputGradientParameters& p, const PointwiseShare& share,
                                            int first_channel)
      : p_(p), share_(share), first_channel_(first_channel), channels_(p.product.channels - first_channel) {
    if constexpr (kFused) {
      const int first = share_.group * p_.product.channels + first_channel_;
      load_items<Sweep>(p_.prologue.scale, first, channels_, A(1), scale_, A());
      load_items<Sweep>(p_.prologue.shift, first, channels_, A(0), shift_, A());
      load_items<Sweep>(p_.mean, first, channels_, A(0), mean_, A());
#pragma unroll
      for (int i = 0; i < Sweep::kItems; ++i) sums_[i][0] = sums_[i][1] = 0;
    }
  }

  FUSEDSC_DEVICE void take(int sweep, int pixel, int channel, A (&g)[Sweep::kRun], int count) {
    if constexpr (kFused) {
      const auto item = [&](int i) { return item_of<Sweep>(sweep, i); };
      if (p_.x.data != nullptr) {
        A x[Sweep::kRun], z[Sweep::kRun];
        load_run<Sweep>(p_.x, share_.group, pixel, channel, count, x, T());
#pragma unroll
        for (int i = 0; i < Sweep::kRun; ++i) z[i] = x[i] * scale_[item(i)] + shift_[item(i)];
        activate_backward(p_.prologue.activation, z, g);
        if (p_.partials != nullptr) {
#pragma unroll
          for (int i = 0; i < Sweep::kRun; ++i) {
            const A added = i < count ? g[i] : A(0);
            sums_[item(i)][0] += added;
            sums_[item(i)][1] += added * (x[i] - mean_[item(i)]);
          }
        }
      }
      if (p_.grad_add.data != nullptr) {
        A added[Sweep::kRun];
        load_run<Sweep>(p_.grad_add, share_.group, pixel, channel, count, added, T());
#pragma unroll
        for (int i = 0; i < Sweep::kRun; ++i) g[i] += added[i];
      }
    }
    store_run<Sweep>(g, p_.grad_x, share_.group, pixel, channel, count, T());
  }

  template <std::size_t kBytes>
  FUSEDSC_DEVICE void finish(SharedMemory<A, kBytes> memory) {
    if constexpr (kFused) leave_sums<Sweep>(p_, share_, first_channel_, memory, sums_);
  }

 private:
  const PointwiseInputGradientParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  A scale_[Sweep::kItems], shift_[Sweep::kItems], mean_[Sweep::kItems], sums_[kFused ? Sweep::kItems : 1][2];
};

template <class T, class Tile, bool kPixelRows, bool kFused>
using InputGradientProduct = PointwiseProduct<T, Tile, kPixelRows, true, kFused>;
template <class T, class Tile, bool kPixelRows, bool kFused>
using InputGradientSink =
    PointwiseInputGradientSink<T, typename InputGradientProduct<T, Tile, kPixelRows, kFused>::Sweep, kFused>;

template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_DEVICE void pointwise_input_gradient(const PointwiseInputGradientParameters& p) {
  using Product = InputGradientProduct<T, Tile, kPixelRows, kFused>;
  Product::template run<InputGradientSink<T, Tile, kPixelRows, kFused>>(p);
}

template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_HOST_DEVICE constexpr std::size_t input_gradient_memory_bytes(bool rows_other, bool cols_other) {
  using Product = InputGradientProduct<T, Tile, kPixelRows, kFused>;
  return Product::template memory_bytes<InputGradientSink<T, Tile, kPixelRows, kFused>>(rows_other, cols_other);
}

}  // namespace fusedsc::gpu
