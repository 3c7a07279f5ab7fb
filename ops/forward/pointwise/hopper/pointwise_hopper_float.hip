#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_instances.h"

namespace fusedsc::gpu::hopper {
namespace {

using KeptTiles = Tiles<Tile<32, 32, 4>, Tile<64, 32, 3>, Tile<96, 32, 3>, Tile<128, 32, 2>, Tile<160, 32, 2>>;
using CutTiles = Tiles<CutTile<1, 32, 2>, CutTile<1, 64, 1>, CutTile<1, 64, 2>, CutTile<1, 96, 2>, CutTile<2, 64, 2>,
                       CutTile<2, 96, 1>, CutTile<2, 128, 1>>;

}  // namespace

const std::vector<PointwiseInstance>& plain_float_instances() {
  static const std::vector<PointwiseInstance> all = [] {
    std::vector<PointwiseInstance> list;
    append<float, false, false, EpilogueKind::plain>(list, DataType::float32, KeptTiles());
    append<float, false, false, EpilogueKind::plain>(list, DataType::float32, CutTiles());
    return list;
  }();
  return all;
}

}  // namespace fusedsc::gpu::hopper
#endif
