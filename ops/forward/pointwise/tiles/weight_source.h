/// A pointwise weight for kernels that lay it out by themselves: a dense one, or a sliding-channel convolution's, of
/// which only the windows are in memory.
#pragma once

#include <algorithm>
#include <limits>

#include "fusedsc/common/gpu/tensors/divisor.h"
#include "fusedsc/common/gpu/tensors/vector.h"
#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu {

/// [filter][channel]. A dense weight's windows all begin at channel 0 and have all channels.
struct WeightSource {
  const void* data = nullptr;
  std::int64_t row = 0, column = 1;  ///< strides
  int filters = 0, channels = 0;
  int width = 0, step = 0;  ///< of windows
  Divisor all;              ///< of channels
  int piece = 1;  ///< so many neighbours lie within a window or outside of it, and are aligned: 16 bytes at most

  /// Whether places of filters can be computed in 32 bits.
  static bool can_be(std::int64_t filters, const SlidingChannels& windows) {
    return filters <= std::numeric_limits<std::int32_t>::max() / std::max<std::int64_t>(windows.step, 1);
  }

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
        all(static_cast<std::uint32_t>(channels)) {
    const auto size = static_cast<int>(size_of(weight.dtype));
    const auto suits = [&](int elements) {
      return column == 1 && row % elements == 0 && width % elements == 0 && step % elements == 0 &&
             channels % elements == 0 && reinterpret_cast<std::uintptr_t>(data) % (elements * size) == 0;
    };
    while (piece * size < 16 && suits(2 * piece)) piece *= 2;
  }

  FUSEDSC_HOST_DEVICE bool is_dense() const { return step == 0; }
  /// The channel of a filter's first weight: what SlidingChannels::first() says, as its cycle times its step is a
  /// multiple of all channels, unless there are no filters beyond it.
  FUSEDSC_HOST_DEVICE int first(int filter) const {
    if (is_dense()) return 0;
    auto number = static_cast<std::uint32_t>(filter) * static_cast<std::uint32_t>(step);
    all.divide(number);
    return static_cast<int>(number);
  }
  /// That of the filter which is so many further that the first of these begins at `advance`.
  FUSEDSC_HOST_DEVICE int next(int first, int advance) const {
    const int sum = first + advance;
    return sum >= channels ? sum - channels : sum;
  }
  /// Of a channel in a filter's weights; `width` or more: it is outside of the window.
  FUSEDSC_HOST_DEVICE int place(int first, int channel) const {
    return channel >= first ? channel - first : channel - first + channels;
  }
  /// Whether a filter has this channel or the next one.
  FUSEDSC_HOST_DEVICE bool has_pair(int first, int channel) const { return place(first, channel + 1) <= width; }
  /// Of a weight or its gradient; below 0: there is no such element.
  FUSEDSC_HOST_DEVICE std::int64_t offset(int filter, int first, int channel) const {
    if (filter >= filters || channel >= channels) return -1;
    const int k = place(first, channel);
    return k < width ? filter * row + k * column : -1;
  }

  /// Whether all pieces are of 16 bytes.
  template <class T>
  FUSEDSC_DEVICE bool in_runs() const {
    return piece * static_cast<int>(sizeof(T)) == 16;
  }
  /// 16 bytes of a filter, from a channel on that is a multiple of their number; 0 where there is nothing, and where it
  /// is not wanted. Without branches, so that the loads of many are under way at once: something is always loaded.
  template <class T, bool kInRuns>
  FUSEDSC_DEVICE Aligned<std::uint32_t, 4> run(int filter, int first, int channel, bool is_wanted = true) const {
    constexpr int kBytes = sizeof(T), kRun = 16 / kBytes;
    is_wanted = is_wanted && filter < filters;
    const std::int64_t from = is_wanted ? filter * row : 0;
    Aligned<std::uint32_t, 4> words = {};
#pragma unroll
    for (int i = 0; i < (kInRuns ? 1 : kRun); ++i) {
      const int k = place(first, channel + i);
      const bool has = is_wanted && channel + i < channels && k < width;
      const T* place_of_piece = static_cast<const T*>(data) + (has ? from + k * column : 0);
      if constexpr (kInRuns) {
        words = *reinterpret_cast<const Aligned<std::uint32_t, 4>*>(place_of_piece);
#pragma unroll
        for (int j = 0; j < 4; ++j) words.elements[j] = has ? words.elements[j] : 0;
      } else {
        const std::uint32_t bits = load<1>(place_of_piece).words[0] << i * kBytes % 4 * 8;
        words.elements[i * kBytes / 4] |= has ? bits : 0;
      }
    }
    return words;
  }
};

}  // namespace fusedsc::gpu
