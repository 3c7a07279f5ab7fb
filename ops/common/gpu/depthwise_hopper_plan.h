/// From a depthwise problem to tiles for Hopper GPUs.
#pragma once

#include <cstdint>

#include "fusedsc/common/gpu/depthwise_hopper_tiles.h"
#include "fusedsc/common/gpu/hopper_host.h"
#include "fusedsc/common/problem.h"

namespace fusedsc::gpu::hopper {

/// How the tiles of a launch are cut; the rest follows.
struct DepthwiseTiling {
  int products = 1;  ///< of 16 positions, that a warp has side by side
  int box_channels = 64, boxes = 1;
  int rows = 2, images = 1, image_parts = 1, stages = 3;
};

constexpr int divide_up(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }
constexpr int round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * static_cast<int>(b); }

/// All of it but for the splits. x, y: their sizes.
DepthwiseTilesShape cut_tiles(const Sizes& x, const Sizes& y, const Window& window, const DepthwiseTiling& tiling);

inline int channel_groups(const DepthwiseTilesShape& shape) {
  return divide_up(shape.channels, shape.boxes * shape.box_bytes / 2);
}

/// `resident`: blocks that run at the same time.
void share_out(DepthwiseTilesShape& shape, int resident);

/// Of the blocks: how much of the time that the last of them takes they all have work, from 0 to 1.
inline double evenness(const DepthwiseTilesShape& shape) {
  return static_cast<double>(shape.units) / (static_cast<double>(divide_up(shape.units, shape.splits)) * shape.splits);
}

/// Empty, or why the problem's window is none that there are kernels of tiles for.
std::string why_no_tiles(const Sizes& x, const Sizes& y, const Window& window);

}  // namespace fusedsc::gpu::hopper
