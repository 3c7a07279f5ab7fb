/// Pointwise convolution on Hopper GPUs, backward: the weight of float32 as its products take it.
#pragma once

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu::hopper {

/// Floats from row to row of a transposed weight: TMA wants rows at multiples of 16 bytes.
inline std::int64_t transposed_pitch(std::int64_t outputs) { return (outputs + 3) / 4 * 4; }

/// to[channel][output] = weight[output][channel], rounded to TensorFloat-32. weight: [outputs, channels, 1, 1], any
/// strides. to: transposed_pitch(outputs) floats from channel to channel.
void launch_transposed_weight(const char* name, const ConstTensorView& weight, float* to, void* stream);

}  // namespace fusedsc::gpu::hopper
