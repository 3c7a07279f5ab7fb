/// From a pointwise problem to a launch of the kernels that multiply fragments as they lie in memory.
#pragma once

#include <limits>
#include <string>

#include "fusedsc/common/gpu/products/wave_product.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// A kernel that was compiled, and what for. `depth`: values of k that come at a time to all warps, which the parts
/// share; `other`: an operand has a second tensor.
template <class Parameters>
struct FragmentInstance {
  using Kernel = void (*)(Parameters);
  using Memory = std::size_t (*)(int depth, bool has_other);

  DataType dtype;
  tuning::Config config;
  Kernel plain, seams;  ///< plain: nothing fused
  Memory plain_memory, seams_memory;

  Kernel kernel(bool has_seams) const { return has_seams ? seams : plain; }
  std::size_t memory(bool has_seams, int of_depth, bool has_other) const {
    return has_seams ? seams_memory(of_depth, has_other) : plain_memory(of_depth, false);
  }
};

/// Rows and columns of a block's tile, warps that share k, and copies under way.
template <class Tile>
tuning::Config config_of_fragments() {
  using enum tuning::Knob;
  return {{rows, Tile::kRows}, {columns, Tile::kColumns}, {groups, Tile::kParts}, {stages, Tile::kStages}};
}

/// What a kernel must be for.
struct FragmentNeeds {
  DataType dtype;
  bool seams = false, other = false;
  int depth = 0;
};

template <class Parameters>
bool fits(const FragmentInstance<Parameters>& instance, const FragmentNeeds& needs) {
  return instance.dtype == needs.dtype &&
         instance.memory(needs.seams, needs.depth, needs.other) <= kSharedMemoryLimit;
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

/// Empty, or why fragments of 16 bytes cannot be read and written: of tensors that are there. Their channels per group.
std::string why_no_fragments(std::initializer_list<ConstTensorView> tensors, std::int64_t groups);
/// Likewise of a weight.
std::string why_no_fragments_of(const ConstTensorView& weight);

/// Sets everything about the tiles, and returns the kernel's cost.
double plan_fragments(const PointwiseProblem& problem, const tuning::Config& config, int resident, int multiprocessors,
                      PointwiseProductParameters& product);

}  // namespace fusedsc::gpu
