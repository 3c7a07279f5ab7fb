/// By which sizes an extent of a problem is cut into tiles.
#pragma once

#include <cstdint>
#include <vector>

namespace fusedsc::tuning {

/// exact: factors alone, so that every wave has the same work (the rule of Liu et al., section 5.1.1). masked: powers
/// of two as well, where what lies beyond the end is at most a quarter of the extent; kernels leave it out.
enum class Edges { exact, masked };

/// Tiles of up to `most` that cover `extent` so, the least first; 1 is always one of them.
std::vector<int> tile_sizes(std::int64_t extent, int most, Edges edges);

}  // namespace fusedsc::tuning
