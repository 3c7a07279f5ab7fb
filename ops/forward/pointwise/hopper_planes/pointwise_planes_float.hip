#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_instances.h"

namespace fusedsc::gpu::hopper {
namespace {

using ResidentTiles =
    Tiles<Tile<32, 32, 2>, Tile<32, 32, 4>, Tile<48, 32, 4>, Tile<64, 32, 4>, Tile<96, 32, 3>, Tile<128, 32, 2>>;
using BoxTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 64, 1>, SlicedKTile<1, 64, 2>, SlicedKTile<1, 96, 2>,
                       SlicedKTile<2, 64, 1>, SlicedKTile<2, 96, 1>, SlicedKTile<2, 128, 1>>;
using RunTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 64, 2>, SlicedKTile<1, 96, 2>, SlicedKTile<2, 96, 1>,
                       SlicedKTile<1, 64, 4>, SlicedKTile<2, 160, 1>, SlicedKTile<4, 32, 1>>;

}  // namespace

const std::vector<PlanesInstance>& plain_float_planes() {
  constexpr EpilogueKind kKind = EpilogueKind::plain;
  static const std::vector<PlanesInstance> all = [] {
    std::vector<PlanesInstance> list;
    append_planes<float, PlanesBox, false, false, kKind>(list, DataType::float32, ResidentTiles());
    append_planes<float, PlanesShifted, false, false, kKind>(list, DataType::float32, ShiftedFloatPlanesTiles());
    append_planes<float, PlanesBox, false, false, kKind>(list, DataType::float32, BoxTiles());
    append_planes<float, PlanesRun, false, false, kKind>(list, DataType::float32, RunTiles());
    return list;
  }();
  return all;
}

}  // namespace fusedsc::gpu::hopper
#endif
