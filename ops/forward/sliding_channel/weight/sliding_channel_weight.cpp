#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight.h"

#include <algorithm>

#include "fusedsc/common/cpu/slices.h"
#include "fusedsc/forward/sliding_channel/weight/sliding_channel_weight_gpu.h"

namespace fusedsc {
namespace {

/// Elements are moved, not computed with: their size is all that matters. Calls body with an integer of that size.
template <class Body>
void with_bits(DataType dtype, const Body& body) {
  switch (size_of(dtype)) {
    case 2: return body(std::uint16_t());
    case 4: return body(std::uint32_t());
    default: return body(std::uint64_t());
  }
}

/// Calls body(filter) for each, from several threads where there are many elements.
template <class Body>
void for_filters(const Execution& execution, std::int64_t filters, std::int64_t elements, const Body& body) {
  constexpr std::int64_t kElementsPerLane = 1 << 14;
  const std::int64_t lanes =
      std::clamp<std::int64_t>(elements / kElementsPerLane, 1, std::min<std::int64_t>(execution.threads, filters));
  run_lanes(execution, lanes, [&](std::int64_t lane) {
    const Range own = part_of(filters, lanes, lane);
    for (std::int64_t m = own.begin; m < own.end; ++m) body(m);
  });
}

}  // namespace

TensorView take_expanded_weight(Arena& arena, const ConstTensorView& weight, const SlidingChannels& windows) {
  const Sizes sizes{weight.sizes[0], windows.channels, 1, 1};
  const std::int64_t bytes = sizes[0] * sizes[1] * static_cast<std::int64_t>(size_of(weight.dtype));
  return {arena.take<char>(bytes), weight.dtype, sizes, dense_strides(sizes, Layout::contiguous), weight.device};
}

void expand_sliding_channels(const SlidingChannels& windows, const ConstTensorView& weight, const TensorView& expanded,
                             const Execution& execution) {
#ifdef FUSEDSC_GPU
  if (weight.device == Device::gpu) {
    return gpu::expand_sliding_channels(windows, weight, expanded, execution.stream);
  }
#endif
  with_bits(weight.dtype, [&](auto bits) {
    using T = decltype(bits);
    for_filters(execution, weight.sizes[0], expanded.elements(), [&](std::int64_t m) {
      const T* from = static_cast<const T*>(weight.data) + m * weight.strides[0];
      T* to = static_cast<T*>(expanded.data) + m * expanded.strides[0];
      std::fill(to, to + windows.channels, T(0));
      std::int64_t channel = windows.first(m);
      for (std::int64_t k = 0; k < windows.width; ++k) {
        to[channel] = from[k * weight.strides[1]];
        if (++channel == windows.channels) channel = 0;
      }
    });
  });
}

void gather_sliding_channels(const SlidingChannels& windows, const ConstTensorView& expanded, const TensorView& weight,
                             const Execution& execution) {
#ifdef FUSEDSC_GPU
  if (weight.device == Device::gpu) {
    return gpu::gather_sliding_channels(windows, expanded, weight, execution.stream);
  }
#endif
  with_bits(weight.dtype, [&](auto bits) {
    using T = decltype(bits);
    for_filters(execution, weight.sizes[0], weight.elements(), [&](std::int64_t m) {
      const T* from = static_cast<const T*>(expanded.data) + m * expanded.strides[0];
      T* to = static_cast<T*>(weight.data) + m * weight.strides[0];
      std::int64_t channel = windows.first(m);
      for (std::int64_t k = 0; k < windows.width; ++k) {
        to[k * weight.strides[1]] = from[channel];
        if (++channel == windows.channels) channel = 0;
      }
    });
  });
}

}  // namespace fusedsc
