/// From a pointwise problem to a launch of the kernels that multiply fragments as they lie in memory.
#pragma once

#include <limits>
#include <string>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_tile.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// A kernel that was compiled, and what for.
template <class Parameters>
struct FragmentInstance {
  using Kernel = void (*)(Parameters);
  using Memory = std::size_t (*)(const FragmentShape&);

  DataType dtype;
  tuning::Config config;
  bool packed = false;  ///< for any even number of channels
  int threads = kMatrixThreads;
  int warp_positions = 0, warp_channels = 0;  ///< of a tile
  Kernel kernels[kFragmentFusions] = {};      ///< by what is fused; null: there is none
  Memory memory[kFragmentFusions] = {};       ///< of a block

  /// Whether the weight comes in stages.
  bool streams() const { return !packed && config[tuning::Knob::depth] > 0; }
};

/// Rows and columns of a block's tile, warps that share k, and copies under way; of a weight that comes in stages the
/// depth of one.
template <class Tile>
tuning::Config config_of_fragments() {
  using enum tuning::Knob;
  tuning::Config config{
      {rows, Tile::kRows}, {columns, Tile::kColumns}, {groups, Tile::kParts}, {stages, Tile::kStages}};
  if constexpr (Tile::kStreams) config[depth] = Tile::kDepth;
  return config;
}

/// What a kernel must be for.
struct FragmentNeeds {
  DataType dtype;
  FragmentFusion fusion = FragmentFusion::none;
  bool packed = false;
  FragmentShape shape;
};

inline FragmentFusion fusion_of(bool has_fusion, std::initializer_list<Activation> activations) {
  for (const Activation activation : activations) {
    if (!only_clamps(activation)) return FragmentFusion::all;
  }
  return has_fusion ? FragmentFusion::clamps : FragmentFusion::none;
}

template <class Parameters>
typename FragmentInstance<Parameters>::Kernel kernel_of(const FragmentInstance<Parameters>& instance,
                                                        const FragmentNeeds& needs) {
  return instance.kernels[static_cast<int>(needs.fusion)];
}
template <class Parameters>
std::size_t memory_of(const FragmentInstance<Parameters>& instance, const FragmentNeeds& needs) {
  return instance.memory[static_cast<int>(needs.fusion)](needs.shape);
}

template <class Parameters>
bool fits(const FragmentInstance<Parameters>& instance, const FragmentNeeds& needs) {
  return instance.dtype == needs.dtype && instance.packed == needs.packed && kernel_of(instance, needs) != nullptr &&
         memory_of(instance, needs) <= shared_memory_limit();
}

template <class Parameters, std::size_t kSize>
tuning::Configs configs_of(const FragmentInstance<Parameters> (&instances)[kSize], const FragmentNeeds& needs) {
  tuning::Configs configs;
  for (const auto& instance : instances) {
    if (fits(instance, needs)) configs.push_back(instance.config);
  }
  return configs;
}

template <class Parameters, std::size_t kSize>
const FragmentInstance<Parameters>& instance_with(const FragmentInstance<Parameters> (&instances)[kSize],
                                                  const FragmentNeeds& needs, const tuning::Config& config) {
  for (const auto& instance : instances) {
    if (fits(instance, needs) && instance.config == config) return instance;
  }
  throw Unsupported("gpu_fragments: there is no kernel of this problem with " + tuning::printed(config));
}

/// The config that cost(instance) says is the cheapest.
template <class Parameters, std::size_t kSize, class Cost>
tuning::Config cheapest_of(const FragmentInstance<Parameters> (&instances)[kSize], const FragmentNeeds& needs,
                           const Cost& cost) {
  tuning::Config best;
  double least_cost = std::numeric_limits<double>::infinity();
  for (const auto& instance : instances) {
    if (!fits(instance, needs)) continue;
    const double candidate = cost(instance);
    if (candidate >= least_cost) continue;
    least_cost = candidate;
    best = instance.config;
  }
  return best;
}

/// Empty, or why packed rows cannot be read and written: of tensors that are there, and of the weight, if it is read.
std::string why_no_packed_fragments(std::initializer_list<ConstTensorView> tensors, const ConstTensorView& weight,
                                    std::int64_t groups);
/// Empty, or why fragments of 16 bytes cannot be read and written, of tensors that are there, or not multiplied.
std::string why_no_fragments(std::initializer_list<ConstTensorView> tensors, std::int64_t groups, bool allow_tf32);
/// Likewise of a weight.
std::string why_no_fragments_of(const ConstTensorView& weight);

/// What is multiplied, and by which kernel.
struct FragmentProblem {
  FragmentNeeds needs;
  PointwiseProblem product;
};
FragmentProblem fragment_problem_of(const PointwiseArguments& a);

/// Warps of a block, and what each has of a tile.
struct FragmentWarp {
  int warps;
  int positions, channels;
  bool streams;  ///< the weight comes in stages
};

/// Sets everything about the tiles, and returns the time of such a plan by counts, in cycles.
double plan_fragments(const FragmentProblem& problem, const tuning::Config& config, const FragmentWarp& warp,
                      int resident, int multiprocessors, PointwiseProductParameters& product);

}  // namespace fusedsc::gpu
