/// The kernels of pointwise_planes.h, by their tiles: what the forward pass and the input gradient list.
#pragma once

#include "fusedsc/common/gpu/pointwise_planes_plan.h"

namespace fusedsc::gpu::hopper {

template <class Product>
FUSEDSC_HOPPER_KERNEL(Product::kThreads)
planes_kernel(const FUSEDSC_GRID_CONSTANT PlanesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Product::run(p);
#endif
}

template <class Product>
void append_planes(std::vector<PlanesInstance>& to, PointwiseFamily family, DataType dtype, bool prologue,
                   EpilogueKind kind, int row_tiles, int cut = 1, int least_stages = 2) {
  to.push_back({family, dtype, Product::kChannels, Product::kTileDepth, row_tiles, cut, Product::kThreads, prologue,
                kind, planes_kernel<Product>, Product::memory_bytes, least_stages});
}

template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind, int... kChannels, int... kDepth,
          int... kGroups>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype, Tiles<Tile<kChannels, kDepth, kGroups>...>) {
  (append_planes<PlanesProduct<T, kChannels, kDepth, kGroups, kPrologue, kInputGradient, kKind>>(
       to, PointwiseFamily::kept, dtype, kPrologue, kKind, kGroups),
   ...);
}

template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind, int... kRowTiles, int... kChannels,
          int... kCut>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype, Tiles<CutTile<kRowTiles, kChannels, kCut>...>) {
  const auto add = [&]<class Product>(Product*) {
    append_planes<Product>(to, PointwiseFamily::cut, dtype, kPrologue, kKind, Product::kRowTiles, Product::kCut,
                           Product::kLeastStages);
  };
  (add(static_cast<PlanesCutProduct<T, kRowTiles, kChannels, kCut, kPrologue, kInputGradient, kKind>*>(nullptr)), ...);
}

using PlainPlanesTiles = Tiles<Tile<32, 64, 2>, Tile<32, 32, 4>, Tile<32, 64, 4>, Tile<48, 64, 4>, Tile<64, 64, 2>,
                               Tile<64, 64, 4>, Tile<96, 32, 4>, Tile<96, 64, 3>, Tile<128, 64, 2>, Tile<160, 64, 2>,
                               Tile<192, 32, 3>>;
using PlainPlanesCutTiles = Tiles<CutTile<1, 32, 2>, CutTile<1, 64, 2>, CutTile<1, 96, 2>, CutTile<2, 96, 1>,
                                  CutTile<2, 64, 2>, CutTile<1, 160, 2>>;
using PlainFloatPlanesTiles = Tiles<Tile<32, 32, 2>, Tile<32, 32, 4>, Tile<48, 32, 4>, Tile<64, 32, 2>, Tile<64, 32, 4>,
                                    Tile<96, 32, 2>, Tile<96, 32, 3>, Tile<128, 32, 2>, Tile<160, 32, 2>,
                                    Tile<192, 32, 2>>;
using PlainFloatPlanesCutTiles = Tiles<CutTile<1, 32, 2>, CutTile<1, 64, 2>, CutTile<1, 96, 2>, CutTile<2, 96, 1>,
                                       CutTile<2, 64, 2>, CutTile<1, 160, 2>, CutTile<2, 160, 1>>;

}  // namespace fusedsc::gpu::hopper
