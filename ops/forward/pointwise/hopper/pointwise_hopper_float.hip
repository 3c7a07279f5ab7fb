#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_instances.h"

namespace fusedsc::gpu::hopper {
namespace {

using ResidentTiles = Tiles<Tile<32, 32, 4>, Tile<64, 32, 3>, Tile<96, 32, 3>, Tile<128, 32, 2>, Tile<160, 32, 2>>;
using SlicedKTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 64, 1>, SlicedKTile<1, 64, 2>, SlicedKTile<1, 96, 2>,
                           SlicedKTile<2, 64, 2>, SlicedKTile<2, 96, 1>, SlicedKTile<2, 128, 1>>;

}  // namespace

const std::vector<PointwiseInstance>& plain_float_instances() {
  static const std::vector<PointwiseInstance> all = [] {
    std::vector<PointwiseInstance> list;
    append<float, false, false, EpilogueKind::plain>(list, DataType::float32, ResidentTiles());
    append<float, false, false, EpilogueKind::plain>(list, DataType::float32, SlicedKTiles());
    return list;
  }();
  return all;
}

}  // namespace fusedsc::gpu::hopper
#endif
