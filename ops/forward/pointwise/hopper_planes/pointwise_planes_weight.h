/// Weights whose rows are no multiples of 16 bytes, for TMA of Hopper GPUs: copies of which they are.
#pragma once

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu::hopper {

/// Elements from row to row of such a copy.
inline std::int64_t padded_pitch(const ConstTensorView& weight) {
  const auto run = static_cast<std::int64_t>(16 / size_of(weight.dtype));
  return (weight.sizes[1] + run - 1) / run * run;
}
/// That it takes.
inline std::int64_t padded_bytes(const ConstTensorView& weight) {
  return weight.sizes[0] * padded_pitch(weight) * static_cast<std::int64_t>(size_of(weight.dtype));
}

/// weight: [outputs, channels, 1, 1] of 16 or 32 bits, any strides. What lies between rows of the copy is not written.
void launch_padded_weight(const char* name, const ConstTensorView& weight, void* to, void* stream);

}  // namespace fusedsc::gpu::hopper
