/// What the kernel of both gradients of sliding-channel convolutions of whole windows on Hopper GPUs is told.
#pragma once

#include "fusedsc/common/gpu/hopper.h"

namespace fusedsc::gpu::hopper {

struct SlidingWindowsInputParameters {
  TensorMap grad_y, weight, grad_x;  ///< weight: [window][filter of the window][channel of the window]
  int pixel_tiles = 0, channel_tiles = 1;
  int splits = 1;       ///< blocks that share the positions
  int groups = 1;       ///< of four warps, in a block
  int stages = 2;       ///< tiles of grad_y that each group has under way
  int step = 16;        ///< channels from a window to the next, half a window
  int depth_steps = 1;  ///< of 16 or 32 filters of each window
  int box_steps = 1;    ///< of these, in a copy of the weight
};

struct SlidingWindowsWeightParameters {
  TensorMap grad_y, x;
  int pixel_tiles = 0, channel_tiles = 1, output_tiles = 1;
  int groups = 1, stages = 2, step = 16;  ///< as above
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
