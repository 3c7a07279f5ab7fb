/// From a depthwise problem of contiguous tensors to the tiles of kernels for Hopper GPUs.
#pragma once

#include <functional>
#include <string>

#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/common/tensor_view.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

/// How the tiles of a launch are cut; the rest follows.
struct DepthwisePlanesTiling {
  int whole_bytes = 6600;    ///< planes that a warp has side by side are cut into strips where they are more
  int tile_bytes = 6 << 10;  ///< about so many are a tile
  int stages = 2, warps = 4;
};

inline tuning::Config config_of(const DepthwisePlanesTiling& tiling, int columns) {
  using tuning::Knob;
  return {{Knob::columns, columns},
          {Knob::whole_bytes, tiling.whole_bytes},
          {Knob::tile_bytes, tiling.tile_bytes},
          {Knob::stages, tiling.stages},
          {Knob::warps, tiling.warps}};
}
inline DepthwisePlanesTiling planes_tiling_of(const tuning::Config& config) {
  using tuning::Knob;
  return {config[Knob::whole_bytes], config[Knob::tile_bytes], config[Knob::stages], config[Knob::warps]};
}

/// A tensor that tiles come from, or none; `spare`: rows that a strip has beyond its own.
struct DepthwisePlanesSource {
  int width = 0, height = 0, spare = 0;
};

/// Lanes, planes and rows. x: what tiles are counted by, and another whose rows come with its, or none; `may_repeat`:
/// a tile may have several times the planes that a warp has side by side. Returns why not, or nothing.
std::string cut_planes(DepthwisePlanesShape& shape, int element_bytes, const DepthwisePlanesSource& x,
                       const DepthwisePlanesSource& other, int lane_columns, bool may_repeat,
                       const DepthwisePlanesTiling& tiling);

/// Columns of the narrower tensor that a lane has, at most `most`; 0 where rows are too long for a warp.
int lane_columns_of(std::int64_t width, int most);
/// Whether a lane can have so many.
bool lanes_have(std::int64_t width, int columns);

/// Whether tiles of x that are cut into whole planes, of whichever channels they are, are whole runs of 16 bytes.
bool are_whole_runs(const DepthwisePlanesShape& shape, int element_bytes);

/// Blocks that run at the same time share the tiles out.
void share_out(DepthwisePlanesShape& shape, int resident_blocks);

/// Likewise, after dividing planes of which a tile is a strip where there are too few for all multiprocessors. y is
/// `stride` times smaller; reach: rows of x beside a window's middle.
DepthwisePlanesParts share_out_parts(DepthwisePlanesShape& shape, int stride, int reach, int resident_blocks);

/// Likewise, where warps have the same channels of some images, as many each.
DepthwisePlanesGroups share_out_groups(DepthwisePlanesShape& shape, std::int64_t images, int resident_blocks);

/// Warps of a block, and warps with the same channels, that are given; 0: what promises to be fastest.
struct DepthwisePlanesForced {
  int warps = 0, splits = 0;
};

/// Likewise, where all warps of a block have the same channels and add their sums up; also how many warps that are, at
/// most so many. `resident_blocks`: of a shape. Returns an estimate of the time; infinity: no block fits.
double share_out_blocks(DepthwisePlanesShape& shape, DepthwisePlanesGroups& result, std::int64_t images,
                        int lane_columns, int most_warps, const DepthwisePlanesForced& forced,
                        const std::function<int(const DepthwisePlanesShape&)>& resident_blocks);

/// Rows of sums that such blocks leave.
inline int rows_of_sums(const DepthwisePlanesShape& shape, const DepthwisePlanesGroups& groups) {
  return (groups.splits + shape.warps - 1) / shape.warps;
}

/// Of x, below which there is mostly nothing to hide the copies' latency behind: measured.
inline std::int64_t least_elements_of_planes() { return std::int64_t{4096} * multiprocessors(); }

/// Empty, or why there are no kernels for a convolution of x to y.
std::string why_no_planes(const ConstTensorView& x, const ConstTensorView& y, const Window& window);

DepthwisePlanesShape planes_shape(const Sizes& x, const Sizes& y);

}  // namespace fusedsc::gpu::hopper
