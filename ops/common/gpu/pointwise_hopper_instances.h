/// The kernels of pointwise_hopper.h, by their tiles: what the forward pass and the input gradient list.
#pragma once

#include "fusedsc/common/gpu/pointwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {

template <class Product>
FUSEDSC_HOPPER_KERNEL(Product::kThreads)
product_kernel(const FUSEDSC_GRID_CONSTANT PointwiseParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  Product::run(p);
#endif
}

template <class T, bool kWeightDepthFirst, bool kPrologue, EpilogueKind kKind, int... kChannels, int... kDepth,
          int... kGroups>
void append(std::vector<PointwiseInstance>& to, DataType dtype, Tiles<Tile<kChannels, kDepth, kGroups>...>) {
  (to.push_back({dtype, kChannels, kDepth, kGroups, kPrologue, kKind,
                 product_kernel<PointwiseProduct<T, kChannels, kDepth, kGroups, kPrologue, kWeightDepthFirst, kKind>>,
                 PointwiseProduct<T, kChannels, kDepth, kGroups, kPrologue, kWeightDepthFirst, kKind>::memory_bytes}),
   ...);
}

using PlainTiles = Tiles<Tile<32, 64, 2>, Tile<32, 64, 4>, Tile<64, 64, 2>, Tile<64, 64, 3>, Tile<128, 64, 2>,
                         Tile<192, 32, 4>, Tile<192, 64, 3>>;

}  // namespace fusedsc::gpu::hopper
