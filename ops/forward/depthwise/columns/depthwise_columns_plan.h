/// From a depthwise problem of float32 channels_last tensors to the strips of kernels for Hopper GPUs.
#pragma once

#include <string>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/tensor_view.h"
#include "fusedsc/forward/depthwise/columns/depthwise_columns.h"

namespace fusedsc::gpu::hopper {

/// Empty, or why there are no kernels for a convolution of x to y.
std::string why_no_columns(const ConstTensorView& x, const ConstTensorView& y, const Window& window);

/// Columns of a warp that fit the width best, of the two that there are kernels for.
int columns_of_warp(std::int64_t output_width);

inline int channel_groups(const DepthwiseColumnsShape& shape) {
  return (shape.channels + shape.kChannels - 1) / shape.kChannels;
}

/// All but for the strips.
DepthwiseColumnsShape columns_shape(const Sizes& x, const Sizes& y, const Window& window, int columns, int stages);

/// `resident`: blocks that run at the same time.
void cut_strips(DepthwiseColumnsShape& shape, const Sizes& y, const Window& window, int columns, int resident);

}  // namespace fusedsc::gpu::hopper
