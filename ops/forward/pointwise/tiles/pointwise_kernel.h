/// Pointwise convolution on GPUs, forward: what happens to finished outputs.
#pragma once

#include "fusedsc/forward/depthwise/rows/depthwise_source.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_product.h"

namespace fusedsc::gpu {

struct PointwiseParameters {
  PointwiseProductParameters product;
  const void* bias = nullptr;
  DevicePrologue epilogue;
  PointwiseMatrix residual;
  OutputMatrix y;
  void* partials = nullptr;  ///< of the statistics, where they are wanted: [split][mean, m2, count][channel]
};

/// What threads have gathered of their items, {mean, m2, count}, into partials.
template <class Sweep, class A, std::size_t kBytes>
FUSEDSC_DEVICE void leave_statistics(const PointwiseParameters& p, const PointwiseShare& share, int first_channel,
                                     SharedMemory<A, kBytes> memory, const A (&values)[Sweep::kItems][3]) {
  const int all_channels = p.product.channels * p.product.groups, channels = p.product.channels - first_channel;
  A* row = static_cast<A*>(p.partials) + static_cast<std::int64_t>(share.split) * 3 * all_channels +
           share.group * p.product.channels + first_channel;
  merge_items<Sweep>(
      memory, values,
      [](A(&to)[3], const A(&from)[3]) { merge_moments(to[2], to[0], to[1], from[2], from[0], from[1]); },
      [&](int channel, const A(&merged)[3]) {
        if (channel >= channels) return;
#pragma unroll
        for (int i = 0; i < 3; ++i) row[i * all_channels + channel] = merged[i];
      });
}

/// Bias, statistics, epilogue, and into memory.
template <class T, class Sweep, bool kFused>
class PointwiseSink {
 public:
  using A = Accumulator<T>;
  static constexpr std::size_t kFinishBytes = kFused ? kMergedItemsBytes<Sweep, 3> : 0;

  FUSEDSC_DEVICE PointwiseSink(const PointwiseParameters& p, const PointwiseShare& share, int first_channel)
      : p_(p), share_(share), first_channel_(first_channel), channels_(p.product.channels - first_channel) {
    const int first = share_.group * p_.product.channels + first_channel_;
    load_items<Sweep>(p_.bias, first, channels_, A(0), bias_, T());
    if constexpr (kFused) {
      if (p_.partials != nullptr) return;
      A scale[Sweep::kItems], shift[Sweep::kItems];
      load_items<Sweep>(p_.epilogue.scale, first, channels_, A(1), scale, A());
      load_items<Sweep>(p_.epilogue.shift, first, channels_, A(0), shift, A());
#pragma unroll
      for (int i = 0; i < Sweep::kItems; ++i) {
        mean_or_scale(i) = scale[i];
        m2_or_shift(i) = shift[i];
      }
    }
  }

  FUSEDSC_DEVICE void take(int sweep, int pixel, int channel, A (&y)[Sweep::kRun], int count) {
    const auto item = [&](int i) { return item_of<Sweep>(sweep, i); };
#pragma unroll
    for (int i = 0; i < Sweep::kRun; ++i) y[i] += bias_[item(i)];
    if constexpr (kFused) {
      if (p_.partials != nullptr) {
        auto& moments = moments_[Sweep::owner(sweep)];
        if constexpr (Sweep::kPixelRows) moments.template add<1>(y, 1);
        else moments.template add<Sweep::kRun>(y, count);
      } else {
#pragma unroll
        for (int i = 0; i < Sweep::kRun; ++i) y[i] = y[i] * mean_or_scale(item(i)) + m2_or_shift(item(i));
        activate(p_.epilogue.activation, y);
        if (p_.residual.data != nullptr) {
          A added[Sweep::kRun];
          load_run<Sweep>(p_.residual, share_.group, pixel, channel, count, added, T());
#pragma unroll
          for (int i = 0; i < Sweep::kRun; ++i) y[i] += added[i];
        }
      }
    }
    store_run<Sweep>(y, p_.y, share_.group, pixel, channel, count, T());
  }

  template <std::size_t kBytes>
  FUSEDSC_DEVICE void finish(SharedMemory<A, kBytes> memory) {
    if constexpr (kFused) {
      if (p_.partials == nullptr) return;
      A values[Sweep::kItems][3];
#pragma unroll
      for (int i = 0; i < Sweep::kItems; ++i) {
        values[i][0] = mean_or_scale(i);
        values[i][1] = m2_or_shift(i);
        values[i][2] = moments_[owner_of(i)].count;
      }
      leave_statistics<Sweep>(p_, share_, first_channel_, memory, values);
    }
  }

 private:
  FUSEDSC_DEVICE static constexpr int owner_of(int item) { return Sweep::kPixelRows ? item / Sweep::kRun : item; }
  /// An epilogue's scale and shift are where statistics are: there are only one or the other, and registers are few.
  FUSEDSC_DEVICE A& mean_or_scale(int item) {
    return moments_[owner_of(item)].mean[Sweep::kPixelRows ? item % Sweep::kRun : 0];
  }
  FUSEDSC_DEVICE A& m2_or_shift(int item) {
    return moments_[owner_of(item)].m2[Sweep::kPixelRows ? item % Sweep::kRun : 0];
  }

  const PointwiseParameters& p_;
  const PointwiseShare share_;
  int first_channel_, channels_;
  A bias_[Sweep::kItems];
  Moments<A, Sweep::kPixelRows ? Sweep::kRun : 1> moments_[kFused ? Sweep::kOwners : 1];
};

template <class T, class Tile, bool kPixelRows, bool kFused>
using ForwardProduct = PointwiseProduct<T, Tile, kPixelRows, false, kFused>;
template <class T, class Tile, bool kPixelRows, bool kFused>
using ForwardSink = PointwiseSink<T, typename ForwardProduct<T, Tile, kPixelRows, kFused>::Sweep, kFused>;

template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_DEVICE void pointwise_forward(const PointwiseParameters& p) {
  using Product = ForwardProduct<T, Tile, kPixelRows, kFused>;
  Product::template run<ForwardSink<T, Tile, kPixelRows, kFused>>(p);
}

template <class T, class Tile, bool kPixelRows, bool kFused>
FUSEDSC_HOST_DEVICE constexpr std::size_t forward_memory_bytes(bool rows_other, bool cols_other) {
  using Product = ForwardProduct<T, Tile, kPixelRows, kFused>;
  return Product::template memory_bytes<ForwardSink<T, Tile, kPixelRows, kFused>>(rows_other, cols_other);
}

}  // namespace fusedsc::gpu
