/// What the kernel of sliding-channel convolutions of whole windows on Hopper GPUs is told.
#pragma once

#include "fusedsc/forward/sliding_channel/windows/sliding_windows_block.h"

namespace fusedsc::gpu::hopper {

/// A step of the depth is 64 channels of x; or all of them, if the step is 8 or 4.
struct SlidingWindowsParameters : SlidingWindowsCut {
  TensorMap x, weight, y;  ///< weight: [window][filter of the window][channel of the window]
  int outputs = 0;
  const void* weight_data = nullptr;  ///< for threads that lay it out
  std::int64_t weight_row = 0;
  void* y_data = nullptr;  ///< for threads that store it
  std::int64_t y_row = 0, pixels = 0;
};

}  // namespace fusedsc::gpu::hopper
