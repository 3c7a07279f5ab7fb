/// The kernels of pointwise_planes.h, by their tiles: what the forward pass and the input gradient list.
#pragma once

#include <type_traits>

#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_plan.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_shifted.h"

namespace fusedsc::gpu::hopper {

/// Blocks for which a multiprocessor shall have registers: two of small tiles that can transpose a weight, which would
/// take more than they need for everything else.
template <class Product>
inline constexpr int kPlanesBlocks =
    Product::kTransposes&& Product::kThreads <= 256 && Product::kChannels <= 96 ? 2 : 1;

template <class Product>
void append_planes(std::vector<PlanesInstance>& to, PointwiseFamily family, bool whole_images, bool shifted,
                   DataType dtype, bool prologue, EpilogueKind kind, int row_tiles, int k_slices,
                   PlanesInstance::LeastStages least_stages) {
  to.push_back({family, whole_images, shifted, dtype, Product::kChannels, Product::kTileDepth, row_tiles, k_slices,
                Product::kThreads, Product::kTransposes, prologue, kind,
                hopper_kernel<Product, Product::kThreads, kPlanesBlocks<Product>>, Product::memory_bytes,
                least_stages});
}

template <class T, template <class> class Positions, bool kInputGradient, bool kPrologue, EpilogueKind kKind,
          int... kChannels, int... kDepth, int... kGroups>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype, Tiles<Tile<kChannels, kDepth, kGroups>...>) {
  (append_planes<PlanesProduct<T, kChannels, kDepth, kGroups, kPrologue, kInputGradient, kKind, Positions<T>>>(
       to, PointwiseFamily::resident, false, Positions<T>::kThreadsStore, dtype, kPrologue, kKind, kGroups, 1,
       [](const PlanesTiling&) { return 2; }),
   ...);
}

template <class T, template <class> class Positions, bool kInputGradient, bool kPrologue, EpilogueKind kKind,
          int... kRowTiles, int... kChannels, int... kKSlices>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype,
                   Tiles<SlicedKTile<kRowTiles, kChannels, kKSlices>...>) {
  const auto add = [&]<class Product>(Product*) {
    append_planes<Product>(to, PointwiseFamily::sliced_k, Positions<T>::kWholeImages, false, dtype, kPrologue, kKind,
                           Product::kRowTiles, Product::kKSlices, [](const PlanesTiling& tiling) {
                             return Product::takes(tiling) ? Product::least_stages(tiling) : 0;
                           });
  };
  (add(static_cast<
       PlanesSlicedKProduct<T, Positions<T>, kRowTiles, kChannels, kKSlices, kPrologue, kInputGradient, kKind>*>(
       nullptr)),
   ...);
}

using PlainPlanesTiles =
    Tiles<Tile<32, 32, 4>, Tile<48, 64, 4>, Tile<48, 64, 7>, Tile<64, 64, 4>, Tile<96, 32, 4>, Tile<192, 32, 3>>;
using PlainBoxTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<2, 64, 1>>;
using PlainRunTiles = Tiles<SlicedKTile<1, 32, 2>, SlicedKTile<1, 64, 2>, SlicedKTile<2, 96, 1>, SlicedKTile<4, 32, 1>,
                            SlicedKTile<4, 64, 1>, SlicedKTile<4, 96, 1>>;

// With fusion, which takes registers of each channel.
using FusedPlanesTiles = Tiles<Tile<32, 64, 4>, Tile<96, 32, 3>>;
using FusedBoxTiles = Tiles<SlicedKTile<2, 64, 1>>;
using FusedRunTiles = Tiles<SlicedKTile<1, 64, 2>, SlicedKTile<4, 64, 1>>;
using FusedFloatPlanesTiles = Tiles<Tile<32, 32, 4>, Tile<96, 32, 2>>;
using GradientFloatPlanesTiles = Tiles<Tile<32, 32, 3>, Tile<64, 32, 2>>;  // which hold a second tensor, too
// Of planes whose values are shifted.
using ShiftedPlanesTiles = Tiles<Tile<32, 64, 4>, Tile<64, 64, 2>>;
using ShiftedFloatPlanesTiles = Tiles<Tile<32, 32, 3>, Tile<64, 32, 2>>;
using FusedFloatBoxTiles = Tiles<SlicedKTile<1, 64, 2>>;
using FusedFloatRunTiles = Tiles<SlicedKTile<1, 64, 2>, SlicedKTile<1, 64, 4>, SlicedKTile<4, 32, 1>>;

/// All kernels of a 16-bit type without fusion.
template <class T, bool kInputGradient>
void append_plain_planes(std::vector<PlanesInstance>& to, DataType dtype) {
  append_planes<T, PlanesBox, kInputGradient, false, EpilogueKind::plain>(to, dtype, PlainPlanesTiles());
  append_planes<T, PlanesShifted, kInputGradient, false, EpilogueKind::plain>(to, dtype, ShiftedPlanesTiles());
  append_planes<T, PlanesBox, kInputGradient, false, EpilogueKind::plain>(to, dtype, PlainBoxTiles());
  append_planes<T, PlanesRun, kInputGradient, false, EpilogueKind::plain>(to, dtype, PlainRunTiles());
}
/// Those of float32, whose weight lies the same way in both directions.
const std::vector<PlanesInstance>& plain_float_planes();

/// All kernels of a type with this fusion.
template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind>
void append_fused_planes(std::vector<PlanesInstance>& to, DataType dtype) {
  constexpr bool kIsFloat = sizeof(T) == 4;
  using FloatTiles = std::conditional_t<kInputGradient, GradientFloatPlanesTiles, FusedFloatPlanesTiles>;
  append_planes<T, PlanesBox, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, FloatTiles, FusedPlanesTiles>());
  append_planes<T, PlanesShifted, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, ShiftedFloatPlanesTiles, ShiftedPlanesTiles>());
  append_planes<T, PlanesBox, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, FusedFloatBoxTiles, FusedBoxTiles>());
  append_planes<T, PlanesRun, kInputGradient, kPrologue, kKind>(
      to, dtype, std::conditional_t<kIsFloat, FusedFloatRunTiles, FusedRunTiles>());
}

}  // namespace fusedsc::gpu::hopper
