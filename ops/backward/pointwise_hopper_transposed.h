/// Pointwise convolution on Hopper GPUs, backward: the weight of float32 as its products take it.
#pragma once

#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu::hopper {

/// to[channel][output] = weight[output][channel], rounded to TensorFloat-32. weight: [outputs, channels, 1, 1], any
/// strides.
void launch_transposed_weight(const char* name, const ConstTensorView& weight, float* to, void* stream);

}  // namespace fusedsc::gpu::hopper
