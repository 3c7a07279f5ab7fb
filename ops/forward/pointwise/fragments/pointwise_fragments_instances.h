/// The kernels of products with positions as columns, by their tiles: of the forward pass and of the input gradient.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_packed_product.h"

namespace fusedsc::gpu {

/// A product, and what becomes of it: what Pass has as Parameters, kInputGradient, and Sink<T, Sweep, kFused, kClamps>.
template <class Pass, class T, class Tile, FragmentFusion kFusion>
struct FragmentsOfPass {
  using Product = FragmentProduct<T, Tile, Pass::kInputGradient, kFusion>;
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

/// kAll: there is a kernel for anything fused, too.
template <class Pass, class T, int kPositionTiles, int kColumns, int kParts, int kBlocks, int kFusedBlocks, bool kAll>
FragmentInstance<typename Pass::Parameters> fragments_of(DataType dtype) {
  using Tile = FragmentTile<kPositionTiles, kColumns, kParts, 4, static_cast<int>(sizeof(T))>;
  FragmentInstance<typename Pass::Parameters> result{dtype, config_of_fragments<Tile>()};
  add_kernel<Pass, T, Tile, kBlocks, FragmentFusion::none>(result);
  add_kernel<Pass, T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  if constexpr (kAll) add_kernel<Pass, T, Tile, 2, FragmentFusion::all>(result);
  return result;
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

  /// Sets everything about the tiles, and returns the kernel's cost.
  template <class Parameters>
  double plan(const FragmentInstance<Parameters>& instance, PointwiseProductParameters& parameters) const {
    const int resident = resident_blocks(kernel_of(instance, needs), instance.threads, memory_of(instance, needs));
    if (instance.packed) {
      return plan_packed_fragments(product, instance.config, needs, resident, multiprocessors(), parameters);
    }
    return plan_fragments(product, instance.config, resident, multiprocessors(), parameters);
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
