#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_instances.h"

namespace fusedsc::gpu::hopper {
namespace {

using KeptTiles =
    Tiles<Tile<32, 32, 2>, Tile<32, 32, 4>, Tile<48, 32, 4>, Tile<64, 32, 4>, Tile<96, 32, 3>, Tile<128, 32, 2>>;
using BoxTiles = Tiles<CutTile<1, 32, 2>, CutTile<1, 64, 1>, CutTile<1, 64, 2>, CutTile<1, 96, 2>, CutTile<2, 64, 1>,
                       CutTile<2, 96, 1>, CutTile<2, 128, 1>>;
using RunTiles = Tiles<CutTile<1, 32, 2>, CutTile<1, 64, 2>, CutTile<1, 96, 2>, CutTile<2, 96, 1>, CutTile<1, 64, 4>,
                       CutTile<2, 160, 1>, CutTile<4, 32, 1>>;

}  // namespace

const std::vector<PlanesInstance>& plain_float_planes() {
  constexpr EpilogueKind kKind = EpilogueKind::plain;
  static const std::vector<PlanesInstance> all = [] {
    std::vector<PlanesInstance> list;
    append_planes<float, PlanesBox, false, false, kKind>(list, DataType::float32, KeptTiles());
    append_planes<float, PlanesShifted, false, false, kKind>(list, DataType::float32, ShiftedFloatPlanesTiles());
    append_planes<float, PlanesBox, false, false, kKind>(list, DataType::float32, BoxTiles());
    append_planes<float, PlanesRun, false, false, kKind>(list, DataType::float32, RunTiles());
    return list;
  }();
  return all;
}

}  // namespace fusedsc::gpu::hopper
#endif
