/// What the kernel of both gradients of sliding-channel convolutions of whole windows on Hopper GPUs is told.
#pragma once

#include "fusedsc/forward/sliding_channel/windows/sliding_windows_block.h"

namespace fusedsc::gpu::hopper {

/// A step of the depth is 16 or 32 filters of each window.
struct SlidingWindowsInputParameters : SlidingWindowsCut {
  TensorMap grad_y, weight, grad_x;  ///< weight: [window][filter of the window][channel of the window]
  int box_steps = 1;                 ///< of the depth, in a copy of the weight
};

struct SlidingWindowsWeightParameters {
  TensorMap grad_y, x;
  int pixel_tiles = 0, channel_tiles = 1, output_tiles = 1;
  int groups = 1, stages = 2, step = 16;  ///< as of SlidingWindowsCut
  int cluster = 1;                        ///< blocks that share the positions of a tile
  int filters = 0;                        ///< of a window
  void* weight = nullptr;                 ///< the gradient
  std::int64_t weight_row = 0;
};

struct SlidingWindowsGradientsParameters {
  SlidingWindowsInputParameters input;
  SlidingWindowsWeightParameters weight;
  int weight_blocks = 0;  ///< which come first
};

}  // namespace fusedsc::gpu::hopper
