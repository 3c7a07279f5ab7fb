/// From a depthwise problem to tiles for Hopper GPUs.
#pragma once

#include <cstdint>
#include <vector>

#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_tiles.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

/// How the tiles of a launch are cut; the rest follows.
struct DepthwiseTiling {
  int products = 1;  ///< of 16 positions, that a warp has side by side
  int box_channels = 64, boxes = 1;
  /// images: of each of the parts; as many as fill the products: images_of_products().
  int rows = 2, images = 1, image_parts = 1, stages = 3;
  bool in_segments = false;  ///< of all channels, which box_channels are then
  int grain = 0;             ///< rows of the output that are not divided between blocks; 0: what is best mostly
};

/// The same of tiles of which a warp has 16 patches of 4 output columns.
struct DepthwisePatching {
  int runs = 8;      ///< of 8 channels that a block has; an odd number, or all there are, unless of whole boxes:
  int box_runs = 0;  ///< 4 or 8: as boxes of so many, whose runs are swizzled
  int rows = 2, image_parts = 1, stages = 3;
  bool in_segments = false;  ///< of all channels
  int grain = 0;             ///< rows of the output that are not divided between blocks; 0: what is best mostly

  bool swizzles() const { return box_runs > 0; }
};

tuning::Config config_of(const DepthwiseTiling& tiling);
DepthwiseTiling tiling_of(const tuning::Config& config);
tuning::Config config_of(const DepthwisePatching& patching);
DepthwisePatching patching_of(const tuning::Config& config);

/// Images whose rows of so many columns so many products of 16 positions have side by side.
constexpr int images_of_products(int products, std::int64_t width) {
  return width <= 8 ? 2 * products : width <= 16 ? products : 1;
}

constexpr int round_up(std::int64_t a, std::int64_t b) { return int_divide_up(a, b) * static_cast<int>(b); }

/// All of it but for the splits. x, y: their sizes.
DepthwiseTilesShape cut_tiles(const Sizes& x, const Sizes& y, const Window& window, const DepthwiseTiling& tiling);

/// Whether blocks of x's channels can have such runs.
bool are_runs(const ConstTensorView& x, const DepthwisePatching& patching);

/// What may be tried for tensors of x's channels; not all of it fits.
std::vector<DepthwisePatching> patchings_of(const ConstTensorView& x);

/// What the 16 patches of a product are of: the output; its gradient, of a convolution of stride 2, from which that of
/// the input comes (x: the sizes of the output's gradient, y: those of the input's); or of both at once for weights,
/// where all patches are read, and tiles have so many columns.
enum class PatchesOf { output, gradient, both };

DepthwiseTilesShape cut_patches(const Sizes& x, const Sizes& y, const Window& window, const DepthwisePatching& t,
                                PatchesOf of);

/// The largest segments of which so many bytes, a multiple of 128, are whole ones.
inline int segment_of(int bytes) {
  int segment = kMostSegment;
  while (bytes % segment != 0) segment -= 128;
  return segment;
}

inline int channel_groups(const DepthwiseTilesShape& shape) { return int_divide_up(shape.channels, shape.runs() * 8); }

/// `resident`: blocks that run at the same time. even: all the same, as far as fewer blocks take no longer.
void share_out(DepthwiseTilesShape& shape, int resident, bool even = false);

/// Among so many splits.
void share_out_among(DepthwiseTilesShape& shape, int splits);

/// Of the blocks: how much of the time that the last of them takes they all have work, from 0 to 1.
inline double evenness(const DepthwiseTilesShape& shape) {
  return static_cast<double>(shape.units) /
         (static_cast<double>(int_divide_up(shape.units, shape.splits)) * shape.splits);
}

/// Empty, or why the problem's window is none that there are kernels of tiles for: 3x3 and 5x5.
std::string why_no_tiles(const Sizes& x, const Sizes& y, const Window& window);

/// The same of patches, which have 7x7 at stride 1, too: forward, and of the weight's gradient.
std::string why_no_patches(const Sizes& x, const Sizes& y, const Window& window);

}  // namespace fusedsc::gpu::hopper
