/// What depthwise kernels know of their problem, and what they can have fused.
#pragma once

#include "fusedsc/common/gpu/sums/item_work.h"

namespace fusedsc::gpu {

/// What a kernel can have fused: a prologue, and in training statistics, in eval mode an epilogue, whose code would be
/// in each other's way. Kernels that are not worth an instance for each have any of it.
enum class DepthwiseFusion { none, training, eval, any };

struct DepthwiseShape {
  int batch = 0, channels = 0;  ///< channels of the output
  int multiplier = 1;
  int input_height = 0, input_width = 0, output_height = 0, output_width = 0;
  int kernel_height = 1, kernel_width = 1, stride_height = 1, stride_width = 1, dilation_height = 1, dilation_width = 1;
  int padding_top = 0, padding_left = 0;
};

}  // namespace fusedsc::gpu
