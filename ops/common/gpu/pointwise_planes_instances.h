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

template <class T, bool kInputGradient, bool kPrologue, EpilogueKind kKind, int... kChannels, int... kDepth,
          int... kGroups>
void append_planes(std::vector<PlanesInstance>& to, DataType dtype, Tiles<Tile<kChannels, kDepth, kGroups>...>) {
  const auto add = [&]<class Product>(Product*) {
    to.push_back({dtype, Product::kChannels, Product::kTileDepth, Product::kGroups, kPrologue, kKind,
                  planes_kernel<Product>, Product::memory_bytes});
  };
  (add(static_cast<PlanesProduct<T, kChannels, kDepth, kGroups, kPrologue, kInputGradient, kKind>*>(nullptr)), ...);
}

using PlainPlanesTiles = Tiles<Tile<32, 64, 2>, Tile<32, 32, 4>, Tile<32, 64, 4>, Tile<48, 64, 4>, Tile<64, 64, 2>,
                               Tile<64, 64, 4>, Tile<96, 32, 4>, Tile<96, 64, 3>, Tile<128, 64, 2>, Tile<160, 64, 2>,
                               Tile<192, 32, 3>>;
using PlainFloatPlanesTiles = Tiles<Tile<32, 32, 2>, Tile<32, 32, 4>, Tile<48, 32, 4>, Tile<64, 32, 2>, Tile<64, 32, 4>,
                                    Tile<96, 32, 2>, Tile<96, 32, 3>, Tile<128, 32, 2>, Tile<160, 32, 2>,
                                    Tile<192, 32, 2>>;

}  // namespace fusedsc::gpu::hopper
