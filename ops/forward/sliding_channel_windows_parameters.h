/// What the kernel of sliding-channel convolutions of whole windows on Hopper GPUs is told.
#pragma once

#include "fusedsc/common/gpu/hopper.h"

namespace fusedsc::gpu::hopper {

struct SlidingWindowsParameters {
  TensorMap x, weight, y;  ///< weight: [window][filter of the window][channel of the window]
  int pixels = 0, pixel_tiles = 0, channel_tiles = 1;
  int splits = 1;       ///< blocks that share the positions
  int groups = 1;       ///< of four warps, in a block
  int stages = 2;       ///< tiles of x that each group has under way
  int step = 16;        ///< channels from a window to the next, half a window
  int depth_steps = 1;  ///< of 64 channels
};

}  // namespace fusedsc::gpu::hopper
