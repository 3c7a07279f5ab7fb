/// A pointwise weight for kernels that lay it out by themselves: a dense one, or a sliding-channel convolution's, of
/// which only the windows are in memory.
#pragma once

#include "fusedsc/common/gpu/divisor.h"
#include "fusedsc/common/gpu/vector.h"
#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu {

/// [filter][channel]. A dense weight's windows all begin at channel 0 and have all channels.
struct WeightSource {
  const void* data = nullptr;
  std::int64_t row = 0, column = 1;  ///< strides
  int filters = 0, channels = 0;
  int width = 0, step = 0;  ///< of windows
  Divisor cycle, all;       ///< of filters; of channels
  bool in_runs = false;     ///< runs of 16 bytes lie within a window or outside of it, and are aligned

  static constexpr std::int64_t kMostChannels = 1 << 15;  ///< the product of two is to stay below 2^31

  WeightSource() = default;
  /// `windows` without channels: a dense weight.
  WeightSource(const ConstTensorView& weight, const SlidingChannels& windows)
      : data(weight.data),
        row(weight.strides[0]),
        column(weight.strides[1]),
        filters(static_cast<int>(weight.sizes[0])),
        channels(static_cast<int>(windows.channels > 0 ? windows.channels : weight.sizes[1])),
        width(static_cast<int>(weight.sizes[1])),
        step(static_cast<int>(windows.step)),
        cycle(static_cast<std::uint32_t>(windows.channels > 0 ? windows.cycle : 1)),
        all(static_cast<std::uint32_t>(channels)) {
    const auto run = static_cast<std::int64_t>(16 / size_of(weight.dtype));
    in_runs = column == 1 && row % run == 0 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && width % run == 0 &&
              step % run == 0 && channels % run == 0;
  }

  FUSEDSC_HOST_DEVICE bool is_dense() const { return step == 0; }
  /// As SlidingChannels has them.
  FUSEDSC_HOST_DEVICE int first(int filter) const {
    if (is_dense()) return 0;
    auto number = static_cast<std::uint32_t>(filter);
    cycle.divide(number);
    number *= static_cast<std::uint32_t>(step);
    all.divide(number);
    return static_cast<int>(number);
  }
  /// `width` or more: the channel is outside of the window.
  FUSEDSC_HOST_DEVICE int place(int first, int channel) const {
    return channel >= first ? channel - first : channel - first + channels;
  }
  /// Of a weight or its gradient; below 0: there is no such element.
  FUSEDSC_HOST_DEVICE std::int64_t offset(int filter, int channel) const {
    if (filter >= filters || channel >= channels) return -1;
    const int k = place(first(filter), channel);
    return k < width ? filter * row + k * column : -1;
  }

  /// 16 bytes of a filter, from a channel on that is a multiple of their number; 0 where there is nothing.
  template <class T>
  FUSEDSC_DEVICE Aligned<std::uint32_t, 4> run(int filter, int channel) const {
    constexpr int kRun = 16 / sizeof(T);
    Aligned<std::uint32_t, 4> words = {};
    if (filter >= filters || channel >= channels) return words;
    const T* from = static_cast<const T*>(data) + filter * row;
    const int first_channel = first(filter);
    if (in_runs) {
      const int k = place(first_channel, channel);
      if (k < width) words = *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(from + k);
      return words;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const int k = place(first_channel, channel + i);
      if (channel + i >= channels || k >= width) continue;
      constexpr int kBytes = sizeof(T);
      words.elements[i * kBytes / 4] |= load<1>(from + k * column).words[0] << i * kBytes % 4 * 8;
    }
    return words;
  }
};

}  // namespace fusedsc::gpu
