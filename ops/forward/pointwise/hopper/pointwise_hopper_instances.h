/// The kernels of pointwise_hopper.h, by their tiles: what the forward pass and the input gradient list.
#pragma once

#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {

/// Blocks that shall fit a multiprocessor: the compiler is told where it would else take a few registers too many.
template <class Product>
inline constexpr int kProductBlocks = 1;
template <int kRowTiles, int kChannels, int kKSlices, bool kInputGradient>
inline constexpr int kProductBlocks<
    PointwiseSlicedKProduct<float, kRowTiles, kChannels, kKSlices, false, kInputGradient, EpilogueKind::plain>> =
    kRowTiles* kKSlices <= 2 && kChannels <= 96 ? 2 : 1;
template <>
inline constexpr int kProductBlocks<PointwiseSlicedKProduct<float, 2, 64, 1, true, true, EpilogueKind::gradient>> = 2;

template <class Product>
void append_product(std::vector<PointwiseInstance>& to, PointwiseFamily family, DataType dtype, bool prologue,
                    EpilogueKind kind, int row_tiles, int k_slices = 1, int least_stages = 2) {
  to.push_back({family, dtype, Product::kChannels, Product::kTileDepth, row_tiles, k_slices, Product::kThreads,
                prologue, kind, hopper_kernel<Product, Product::kThreads, kProductBlocks<Product>>,
                Product::memory_bytes, least_stages});
}

template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind, int... kChannels, int... kDepth,
          int... kGroups>
void append(std::vector<PointwiseInstance>& to, DataType dtype, Tiles<Tile<kChannels, kDepth, kGroups>...>) {
  (append_product<PointwiseProduct<T, kChannels, kDepth, kGroups, kPrologue, kInputGradient, kKind>>(
       to, PointwiseFamily::resident, dtype, kPrologue, kKind, kGroups),
   ...);
}

template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind, int... kRowTiles, int... kChannels,
          int... kKSlices>
void append(std::vector<PointwiseInstance>& to, DataType dtype, Tiles<SlicedKTile<kRowTiles, kChannels, kKSlices>...>) {
  const auto add = [&]<class Product>(Product*) {
    append_product<Product>(to, PointwiseFamily::sliced_k, dtype, kPrologue, kKind, Product::kRowTiles,
                            Product::kKSlices, Product::kLeastStages);
  };
  (add(static_cast<PointwiseSlicedKProduct<T, kRowTiles, kChannels, kKSlices, kPrologue, kInputGradient, kKind>*>(
       nullptr)),
   ...);
}

template <class T, bool kInputGradient, EpilogueKind kKind, int... kChannels, int... kGroups>
void append(std::vector<PointwiseInstance>& to, DataType dtype, Tiles<RowsTile<kChannels, kGroups>...>) {
  (append_product<PointwiseRowsProduct<T, kChannels, kGroups, kInputGradient, kKind>>(to, PointwiseFamily::rows, dtype,
                                                                                      false, kKind, kGroups),
   ...);
}

// Where memory binds, costs are equal and the first is taken.
using PlainTiles = Tiles<Tile<32, 64, 2>, Tile<32, 64, 4>, Tile<64, 64, 3>, Tile<64, 64, 2>, Tile<128, 64, 2>,
                         Tile<192, 32, 4>, Tile<192, 64, 3>>;
using PlainSlicedKTiles = Tiles<SlicedKTile<1, 32, 1>, SlicedKTile<1, 32, 2>, SlicedKTile<1, 64, 1>,
                                SlicedKTile<1, 96, 2>, SlicedKTile<2, 64, 2>, SlicedKTile<2, 96, 1>>;
using RowsTiles = Tiles<RowsTile<48, 6>, RowsTile<48, 3>, RowsTile<96, 3>, RowsTile<128, 3>>;

}  // namespace fusedsc::gpu::hopper
