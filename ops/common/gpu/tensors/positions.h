/// Elements at neighbouring positions of neighbouring channels, for passes to which all positions are alike.
#pragma once

#include "fusedsc/common/gpu/tensors/tensor.h"

namespace fusedsc::gpu {

/// kColumns neighbouring positions of kChannels neighbouring channels, of which the image has `columns`; zero beyond.
/// `join`: whole ones are one vector, of neighbouring columns of one channel.
template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void load_positions(const ConstDeviceTensor& tensor, std::int64_t offset, int columns, bool join,
                                   Accumulator<T> (&to)[kColumns * kChannels]) {
  const T* from = elements_of<T>(tensor) + offset;
  if constexpr (kChannels == 1) {
    if (join && columns == kColumns) return load<kColumns>(from).widen(to);
  }
#pragma unroll
  for (int i = 0; i < kColumns * kChannels; ++i) to[i] = 0;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (c < columns) load<kChannels>(from + c * tensor.column).widen(to + c * kChannels);
  }
}

template <class T, int kChannels, int kColumns>
FUSEDSC_DEVICE void store_positions(const Accumulator<T> (&from)[kColumns * kChannels], const DeviceTensor& tensor,
                                    std::int64_t offset, int columns, bool join) {
  T* to = elements_of<T>(tensor) + offset;
  if constexpr (kChannels == 1) {
    if (join && columns == kColumns) return store<kColumns>(from, to);
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (c < columns) store<kChannels>(from + c * kChannels, to + c * tensor.column);
  }
}

}  // namespace fusedsc::gpu
