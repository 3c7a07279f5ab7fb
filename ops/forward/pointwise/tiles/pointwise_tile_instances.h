/// The kernels of a pass over pointwise tiles, as its table lists them: of the forward pass and of either gradient.
#pragma once

#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

/// A table's instances of both 16-bit types, by a function of its Instances.
#define FUSEDSC_HALVES(of, ...) \
  Instances::of<Float16, __VA_ARGS__>(DataType::float16), Instances::of<BFloat16, __VA_ARGS__>(DataType::bfloat16)

namespace fusedsc::gpu {

/// Pass: its Parameters; kernel<T, Tile, kChannelsInner, kBlocks, kFused, kElements>() and likewise memory<...>(),
/// which does without the blocks; and blocks_of_elements<T>, that shall fit a multiprocessor where a kernel is for all.
template <class Pass>
struct TileInstances {
  using Instance = PointwiseInstance<typename Pass::Parameters>;

  template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
            bool kTf32 = false, bool kElements = false, int kFusedBlocks = FUSEDSC_FUSED_PRODUCT_BLOCKS>
  static constexpr Instance of(DataType dtype) {
    using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
    return {dtype,
            kChannelsInner,
            {kRows, kCols, kDepth, kParts, kTf32, kElements},
            Pass::template kernel<T, Tile, kChannelsInner, kBlocks, false, kElements>(),
            Pass::template kernel<T, Tile, kChannelsInner, kFusedBlocks, true, kElements>(),
            Pass::template memory<T, Tile, kChannelsInner, false, kElements>(),
            Pass::template memory<T, Tile, kChannelsInner, true, kElements>()};
  }

  /// Of products of TensorFloat-32.
  template <bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3>
  static constexpr Instance tf32() {
    return of<float, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, true>(DataType::float32);
  }

  /// Of tensors with elements that are no runs: one kernel, with fusion and without it.
  template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, bool kTf32 = false,
            int kBlocks = Pass::template blocks_of_elements<T>>
  static constexpr Instance elements(DataType dtype) {
    using Tile = MatrixTile<kRows, kCols, kDepth, kParts, kTf32>;
    constexpr auto kKernel = Pass::template kernel<T, Tile, kChannelsInner, kBlocks, true, true>();
    constexpr auto kMemory = Pass::template memory<T, Tile, kChannelsInner, true, true>();
    return {dtype, kChannelsInner, {kRows, kCols, kDepth, kParts, kTf32, true}, kKernel, kKernel, kMemory, kMemory};
  }

  /// Likewise, with a kernel of their own for products without fusion.
  template <class T, bool kChannelsInner, int kRows, int kCols, int kDepth, int kParts = 1, int kBlocks = 3,
            int kFusedBlocks = FUSEDSC_FUSED_PRODUCT_BLOCKS>
  static constexpr Instance plain_elements(DataType dtype) {
    return of<T, kChannelsInner, kRows, kCols, kDepth, kParts, kBlocks, false, true, kFusedBlocks>(dtype);
  }
};

}  // namespace fusedsc::gpu
