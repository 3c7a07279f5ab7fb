/// When one pass for both gradients is worth what its blocks leave of their sums.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/common/gpu/vendor/gpu.h"

namespace fusedsc::gpu::hopper {

/// Whether each block has a tile of 64 positions to copy behind the one that it multiplies. Over fewer, the sums cost
/// more than the launch that is spared.
inline bool has_tiles_for_all(const PointwiseBackwardArguments& a) {
  constexpr std::int64_t kPositions = 2 * 64;
  return a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3] >= kPositions * multiprocessors();
}

}  // namespace fusedsc::gpu::hopper
