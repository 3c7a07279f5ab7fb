/// The kernels of pointwise_planes.h, by their tiles: what the forward pass and the input gradient list.
#pragma once

#include <type_traits>

#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_plan.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_shifted.h"

namespace fusedsc::gpu::hopper {

/// Blocks for which a multiprocessor shall have registers: two of small tiles that can turn a weight, which would take
/// more than they need for everything else.
template <class Product>
inline constexpr int kPlanesBlocks = Product::kTurns&& Product::kThreads <= 256 && Product::kChannels <= 96 ? 2 : 1;

template <class Product>
FUSEDSC_KERNEL(Product::kThreads, kPlanesBlocks<Product>)
planes_kernel(const FUSEDSC_GRID_CONSTANT PlanesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Product::run(p);
#endif
}

template <class Product>
void append_planes(std::vector<PlanesInstance>& to, PointwiseFamily family, bool whole_images, bool shifted,
                   DataType dtype, bool prologue, EpilogueKind kind, int row_tiles, int cut,
                   PlanesInstance::LeastStages least_stages) {
  to.push_back({family, whole_images, shifted, dtype, Product::kChannels, Product::kTileDepth, row_tiles, cut,
                Product::kThreads, Product::kTurns, prologue, kind, planes_kernel<Product>, Product::memory_bytes,
                least_stages});
}

template <class T, template <class> class Positions, bool kInputGradient, bool kPrologue, EpilogueKind kKind,
          int... kChannels, int... kDepth, int... kGroups>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype, Tiles<Tile<kChannels, kDepth, kGroups>...>) {
  (append_planes<PlanesProduct<T, kChannels, kDepth, kGroups, kPrologue, kInputGradient, kKind, Positions<T>>>(
       to, PointwiseFamily::kept, false, Positions<T>::kThreadsStore, dtype, kPrologue, kKind, kGroups, 1,
       [](const PlanesTiling&) { return 2; }),
   ...);
}

template <class T, template <class> class Positions, bool kInputGradient, bool kPrologue, EpilogueKind kKind,
          int... kRowTiles, int... kChannels, int... kCut>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype, Tiles<CutTile<kRowTiles, kChannels, kCut>...>) {
  const auto add = [&]<class Product>(Product*) {
    append_planes<Product>(to, PointwiseFamily::cut, Positions<T>::kWholeImages, false, dtype, kPrologue, kKind,
                           Product::kRowTiles, Product::kCut, [](const PlanesTiling& tiling) {
                             return Product::takes(tiling) ? Product::least_stages(tiling) : 0;
                           });
  };
  (add(static_cast<PlanesCutProduct<T, Positions<T>, kRowTiles, kChannels, kCut, kPrologue, kInputGradient, kKind>*>(
       nullptr)),
   ...);
}

using PlainPlanesTiles =
    Tiles<Tile<32, 32, 4>, Tile<48, 64, 4>, Tile<48, 64, 7>, Tile<64, 64, 4>, Tile<96, 32, 4>, Tile<192, 32, 3>>;
using PlainBoxTiles = Tiles<CutTile<1, 32, 2>, CutTile<2, 64, 1>>;
using PlainRunTiles = Tiles<CutTile<1, 32, 2>, CutTile<1, 64, 2>, CutTile<2, 96, 1>, CutTile<4, 32, 1>,
                            CutTile<4, 64, 1>, CutTile<4, 96, 1>>;

// With seams, which take registers of each channel.
using SeamPlanesTiles = Tiles<Tile<32, 64, 4>, Tile<96, 32, 3>>;
using SeamBoxTiles = Tiles<CutTile<2, 64, 1>>;
using SeamRunTiles = Tiles<CutTile<1, 64, 2>, CutTile<4, 64, 1>>;
using SeamFloatPlanesTiles = Tiles<Tile<32, 32, 4>, Tile<96, 32, 2>>;
using GradientFloatPlanesTiles = Tiles<Tile<32, 32, 3>, Tile<64, 32, 2>>;  // which hold a second tensor, too
// Of planes whose values are shifted.
using ShiftedPlanesTiles = Tiles<Tile<32, 64, 4>, Tile<64, 64, 2>>;
using ShiftedFloatPlanesTiles = Tiles<Tile<32, 32, 3>, Tile<64, 32, 2>>;
using SeamFloatBoxTiles = Tiles<CutTile<1, 64, 2>>;
using SeamFloatRunTiles = Tiles<CutTile<1, 64, 2>, CutTile<1, 64, 4>, CutTile<4, 32, 1>>;

/// All kernels of a 16-bit type without seams.
template <class T, bool kInputGradient>
void append_plain_planes(std::vector<PlanesInstance>& to, DataType dtype) {
  append_planes<T, PlanesBox, kInputGradient, false, EpilogueKind::plain>(to, dtype, PlainPlanesTiles());
  append_planes<T, PlanesShifted, kInputGradient, false, EpilogueKind::plain>(to, dtype, ShiftedPlanesTiles());
  append_planes<T, PlanesBox, kInputGradient, false, EpilogueKind::plain>(to, dtype, PlainBoxTiles());
  append_planes<T, PlanesRun, kInputGradient, false, EpilogueKind::plain>(to, dtype, PlainRunTiles());
}
/// Those of float32, whose weight lies the same way in both directions.
const std::vector<PlanesInstance>& plain_float_planes();

/// All kernels of a type with these seams.
template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind>
void append_seam_planes(std::vector<PlanesInstance>& to, DataType dtype) {
  constexpr bool kIsFloat = sizeof(T) == 4;
  using FloatTiles = std::conditional_t<kInputGradient, GradientFloatPlanesTiles, SeamFloatPlanesTiles>;
  append_planes<T, PlanesBox, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, FloatTiles, SeamPlanesTiles>());
  append_planes<T, PlanesShifted, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, ShiftedFloatPlanesTiles, ShiftedPlanesTiles>());
  append_planes<T, PlanesBox, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, SeamFloatBoxTiles, SeamBoxTiles>());
  append_planes<T, PlanesRun, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, SeamFloatRunTiles, SeamRunTiles>());
}

}  // namespace fusedsc::gpu::hopper
