/// The kernels of products with positions as columns, by their tiles: of the forward pass and of the input gradient.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_packed_product.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_streamed_product.h"

namespace fusedsc::gpu {

/// A product, and what becomes of it: what Pass has as Parameters, kInputGradient, and Sink<T, Sweep, kFused, kClamps>.
template <class Pass, class T, class Tile, FragmentFusion kFusion>
struct FragmentsOfPass {
  using Product = std::conditional_t<Tile::kStreams, StreamedProduct<T, Tile, Pass::kInputGradient, kFusion>,
                                     FragmentProduct<T, Tile, Pass::kInputGradient, kFusion>>;
  using Sink = typename Pass::template Sink<T, FragmentSweep<Tile>, kFusion != FragmentFusion::none,
                                            kFusion == FragmentFusion::clamps>;

  static std::size_t memory_bytes(const FragmentShape& shape) {
    return Product::template memory_bytes<Sink>(shape.depth, shape.has_other);
  }
};

template <class Pass, class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(kMatrixThreads, kBlocks)
fragments_kernel(typename Pass::Parameters parameters) {
  using Kernel = FragmentsOfPass<Pass, T, Tile, kFusion>;
  Kernel::Product::template run<typename Kernel::Sink>(parameters);
}

template <class Pass, class T, class Tile, int kBlocks, FragmentFusion kFusion>
void add_kernel(FragmentInstance<typename Pass::Parameters>& to) {
  constexpr int kPlace = static_cast<int>(kFusion);
  if constexpr (kWaveProducts) to.kernels[kPlace] = fragments_kernel<Pass, T, Tile, kBlocks, kFusion>;
  to.memory[kPlace] = FragmentsOfPass<Pass, T, Tile, kFusion>::memory_bytes;
}

/// Of 16 bits, or of floats, which take other registers and memory.
template <class T>
constexpr int by_type(int of_half, int of_float) {
  return sizeof(T) == 2 ? of_half : of_float;
}

/// kAll: there is a kernel for anything fused, too.
template <class Pass, class T, class Tile, int kBlocks, int kFusedBlocks, bool kAll>
FragmentInstance<typename Pass::Parameters> fragments_of_tile(DataType dtype) {
  FragmentInstance<typename Pass::Parameters> result{dtype, config_of_fragments<Tile>()};
  result.warp_positions = 8 * Tile::kPositionTiles;
  result.warp_channels = Tile::kWarpChannels;
  add_kernel<Pass, T, Tile, kBlocks, FragmentFusion::none>(result);
  if constexpr (kFusedBlocks > 0) add_kernel<Pass, T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  if constexpr (kAll) add_kernel<Pass, T, Tile, 2, FragmentFusion::all>(result);
  return result;
}

template <class Pass, class T, int kPositionTiles, int kColumns, int kParts, int kBlocks, int kFusedBlocks, bool kAll>
FragmentInstance<typename Pass::Parameters> fragments_of(DataType dtype) {
  using Tile = FragmentTile<kPositionTiles, kColumns, kParts, 4, static_cast<int>(sizeof(T))>;
  return fragments_of_tile<Pass, T, Tile, kBlocks, kFusedBlocks, kAll>(dtype);
}

/// With a weight that comes in stages: tiles of 8 positions of a warp, columns of a block, warps along positions,
/// chunks of a stage, stages.
template <class Pass, class T, int kPositionTiles, int kColumns, int kWarpRows, int kChunks, int kStages, int kBlocks,
          int kFusedBlocks, bool kAll>
FragmentInstance<typename Pass::Parameters> streamed_fragments_of(DataType dtype) {
  using Tile = StreamedTile<kPositionTiles, kColumns, kWarpRows, kChunks, kStages, static_cast<int>(sizeof(T))>;
  return fragments_of_tile<Pass, T, Tile, kBlocks, kFusedBlocks, kAll>(dtype);
}

template <class Pass, class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(Tile::kThreads, kBlocks)
packed_fragments_kernel(typename Pass::Parameters parameters) {
  PackedProduct<Pass, T, Tile, kFusion>::run(parameters);
}

template <class Pass, class T, class Tile, int kBlocks, FragmentFusion kFusion>
void add_packed_kernel(FragmentInstance<typename Pass::Parameters>& to) {
  constexpr int kPlace = static_cast<int>(kFusion);
  if constexpr (kWaveProducts) to.kernels[kPlace] = packed_fragments_kernel<Pass, T, Tile, kBlocks, kFusion>;
  to.memory[kPlace] = PackedProduct<Pass, T, Tile, kFusion>::memory_bytes;
}

template <class Pass, class T, int kPositionTiles, int kColumns, int kBlocks, int kFusedBlocks>
FragmentInstance<typename Pass::Parameters> packed_fragments_of(DataType dtype) {
  using Tile = PackedTile<kPositionTiles, kColumns>;
  FragmentInstance<typename Pass::Parameters> result{dtype, config_of_fragments<Tile>(), true, Tile::kThreads};
  add_packed_kernel<Pass, T, Tile, kBlocks, FragmentFusion::none>(result);
  add_packed_kernel<Pass, T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  add_packed_kernel<Pass, T, Tile, (kColumns < 64 ? 2 : 1), FragmentFusion::all>(result);
  return result;
}

/// What is multiplied, and by which kernel.
struct FragmentProblem {
  FragmentNeeds needs;
  PointwiseProblem product;

  /// Sets everything about the tiles, and returns what the kernel takes by counts, in cycles.
  template <class Parameters>
  double plan(const FragmentInstance<Parameters>& instance, PointwiseProductParameters& parameters) const {
    const int resident = resident_blocks(kernel_of(instance, needs), instance.threads, memory_of(instance, needs));
    if (instance.packed) {
      return plan_packed_fragments(product, instance.config, needs, resident, multiprocessors(), parameters);
    }
    plan_fragments(product, instance.config, resident, multiprocessors(), parameters);
    const FragmentWarp warp{instance.warp_positions, instance.warp_channels, instance.streams()};
    return counted_fragments(product, instance.config, warp, needs, resident, multiprocessors(), parameters);
  }

  template <class Parameters, std::size_t kSize>
  tuning::Config cheapest(const FragmentInstance<Parameters> (&instances)[kSize]) const {
    return cheapest_of(instances, needs, [&](const auto& instance) {
      PointwiseProductParameters parameters;
      return plan(instance, parameters);
    });
  }
};

}  // namespace fusedsc::gpu
