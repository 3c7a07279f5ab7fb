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

/// The activation's derivative, sums, a residual's gradient, and into memory.
/// kClamps: activations only do that.
template <class T, class Sweep, bool kFused, bool kClamps = false>
class PointwiseInputGradientSink {
 public:
  using A = Accumulator<T>;
  static constexpr std::size_t kFinishBytes = kFused ? kMergedItemsBytes<Sweep, 2> : 0;

  FUSEDSC_DEVICE PointwiseInputGradientSink(const PointwiseInputGradientParameters& p, const PointwiseShare& share,
                                            int first_channel)
      : p_(p), share_(share), first_channel_(first_channel), channels_(p.product.channels - first_channel) {
    if constexpr (kFused) {
      if constexpr (!kMeetsOwners<Sweep>) meet(0);
#pragma unroll
      for (int i = 0; i < Sweep::kItems; ++i) sums_[i][0] = sums_[i][1] = 0;
    }
  }

  FUSEDSC_DEVICE void meet(int owner) {
    if constexpr (kFused) {
      const int first = share_.group * p_.product.channels + first_channel_;
      load_items<Sweep>(p_.prologue.scale, first, channels_, A(1), scale_, A(), owner);
      load_items<Sweep>(p_.prologue.shift, first, channels_, A(0), shift_, A(), owner);
      load_items<Sweep>(p_.mean, first, channels_, A(0), mean_, A(), owner);
    }
  }

  FUSEDSC_DEVICE void take(int sweep, int pixel, int channel, A (&g)[Sweep::kRun], int count) {
    if constexpr (kFused) {
      const auto item = [&](int i) { return item_of<Sweep>(sweep, i); };
      const auto kept = [&](int i) { return kept_item<Sweep>(item(i)); };
      if (p_.x.data != nullptr) {
        A x[Sweep::kRun], z[Sweep::kRun];
        load_run<Sweep>(p_.x, share_.group, pixel, channel, count, x, T());
#pragma unroll
        for (int i = 0; i < Sweep::kRun; ++i) z[i] = x[i] * scale_[kept(i)] + shift_[kept(i)];
        activate_backward_by<kClamps>(p_.prologue.activation, z, g);
        if (p_.partials != nullptr) {
#pragma unroll
          for (int i = 0; i < Sweep::kRun; ++i) {
            const A added = i < count ? g[i] : A(0);
            sums_[item(i)][0] += added;
            sums_[item(i)][1] += added * (x[i] - mean_[kept(i)]);
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
    if constexpr (kFused) {
      if (p_.partials == nullptr) return;
      const int all_channels = p_.product.channels * p_.product.groups;
      A* row = static_cast<A*>(p_.partials) + static_cast<std::int64_t>(share_.split) * 2 * all_channels +
               share_.group * p_.product.channels + first_channel_;
      merge_items<Sweep>(
          memory, sums_,
          [](A(&to)[2], const A(&from)[2]) {
            to[0] += from[0];
            to[1] += from[1];
          },
          [&](int channel, const A(&merged)[2]) {
            if (channel >= channels_) return;
            row[channel] = merged[0];
            row[all_channels + channel] = merged[1];
          });
    }
  }

 private:
  static constexpr int kItems = kFused ? Sweep::kItems : 1;

  const PointwiseInputGradientParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  static constexpr int kKept = kKeptItems<Sweep>;
  A scale_[kKept], shift_[kKept], mean_[kKept], sums_[kItems][2];
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
