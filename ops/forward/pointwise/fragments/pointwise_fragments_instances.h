/// The kernels of products with positions as columns, by their tiles: of the forward pass and of the input gradient.
#pragma once

#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_pass.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"

namespace fusedsc::gpu {

template <class Pass, class T, class Tile, int kBlocks, FragmentFusion kFusion>
FUSEDSC_KERNEL(Tile::kThreads, kBlocks)
fragments_kernel(typename Pass::Parameters parameters) {
  FragmentsOfPass<Pass, T, Tile, kFusion>::run(parameters);
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

template <class Pass, class T, int kPositionTiles, int kColumns, int kBlocks, int kFusedBlocks>
FragmentInstance<typename Pass::Parameters> packed_fragments_of(DataType dtype) {
  using Tile = PackedTile<kPositionTiles, kColumns>;
  FragmentInstance<typename Pass::Parameters> result{dtype, config_of_fragments<Tile>(), true, Tile::kThreads};
  result.warp_positions = 8 * Tile::kPositionTiles;
  result.warp_channels = Tile::kWarpChannels;
  add_kernel<Pass, T, Tile, kBlocks, FragmentFusion::none>(result);
  add_kernel<Pass, T, Tile, kFusedBlocks, FragmentFusion::clamps>(result);
  add_kernel<Pass, T, Tile, (kColumns < 64 ? 2 : 1), FragmentFusion::all>(result);
  return result;
}

/// Sets everything about the tiles, and returns what the kernel takes by counts, in cycles.
template <class Parameters>
double plan_instance(const FragmentProblem& problem, const FragmentInstance<Parameters>& instance,
                     PointwiseProductParameters& parameters) {
  const FragmentNeeds& needs = problem.needs;
  const int resident = resident_blocks(kernel_of(instance, needs), instance.threads, memory_of(instance, needs));
  const FragmentWarp warp{instance.threads / 32, instance.warp_positions, instance.warp_channels, instance.streams()};
  return plan_fragments(problem, instance.config, warp, resident, multiprocessors(), parameters);
}

template <class Parameters, std::size_t kSize>
tuning::Config cheapest(const FragmentProblem& problem, const FragmentInstance<Parameters> (&instances)[kSize]) {
  return cheapest_of(instances, problem.needs, [&](const auto& instance) {
    PointwiseProductParameters parameters;
    return plan_instance(problem, instance, parameters);
  });
}

}  // namespace fusedsc::gpu
