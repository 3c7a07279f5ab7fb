/// From a pointwise problem to a launch: pure functions of the problem, the kernels' tiles and the size of the GPU.
#pragma once

#include <limits>
#include <string>

#include "fusedsc/common/problem.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_product.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

struct PointwiseTile {
  int rows, cols, depth, parts;
  bool tf32;
  bool elements = false;  ///< of tensors whose neighbours are mostly no runs of 8 bytes
  double wait = 2900;     ///< cycles of a step of TF32's weight gradient, whatever the tile; measured of "gpu_tiles"
};

/// Whether a product of this type rounds its factors to TensorFloat-32.
inline bool uses_tf32(DataType dtype, bool is_allowed) {
#ifdef FUSEDSC_TF32
  return is_allowed && dtype == DataType::float32 && has_tf32();
#else
  static_cast<void>(dtype), static_cast<void>(is_allowed);
  return false;
#endif
}

/// A kernel that was compiled, and what for.
template <class Parameters>
struct PointwiseInstance {
  using Kernel = void (*)(Parameters);
  using Memory = std::size_t (*)(bool rows_other, bool cols_other);

  DataType dtype;
  bool channels_inner;  ///< for tensors whose channels are neighbours, else for those whose positions are
  PointwiseTile tile;
  Kernel plain, fused;                ///< plain: nothing fused
  Memory plain_memory, fused_memory;  ///< of a block, by whether an operand has a second tensor
};

struct PointwiseMemoryUse {
  bool rows_other = false, cols_other = false, fused = false, elements = false;
};

/// Whether a product's kernel is one for elements: its larger tensor has some that cannot be copied several at once.
inline bool has_elements(int x_run_bytes, std::int64_t x_channels, int y_run_bytes, std::int64_t y_channels) {
  return (x_channels > y_channels ? x_run_bytes : y_run_bytes) == 0;
}

template <class Parameters>
std::size_t memory_of(const PointwiseInstance<Parameters>& instance, const PointwiseMemoryUse& use) {
  return use.fused ? instance.fused_memory(use.rows_other, use.cols_other) : instance.plain_memory(false, false);
}

template <class Parameters>
typename PointwiseInstance<Parameters>::Kernel kernel_of(const PointwiseInstance<Parameters>& instance,
                                                         const PointwiseMemoryUse& use) {
  return use.fused ? instance.fused : instance.plain;
}

/// Rows, columns and depth of a tile, and the groups of warps that share its depth, as a config of the registry.
tuning::Config config_of(const PointwiseTile& tile);

/// What a kernel must be for.
struct PointwiseNeeds {
  DataType dtype;
  bool tf32, channels_inner;
  PointwiseMemoryUse use;
};

/// Whether an instance is that, and its blocks fit the GPU.
template <class Parameters>
bool fits(const PointwiseInstance<Parameters>& instance, const PointwiseNeeds& needs) {
  return instance.dtype == needs.dtype && instance.tile.tf32 == needs.tf32 &&
         instance.channels_inner == needs.channels_inner && instance.tile.elements == needs.use.elements &&
         memory_of(instance, needs.use) <= shared_memory_limit();
}

/// The tiles of those that fit.
template <class Parameters, std::size_t kSize>
tuning::Configs configs_of(const PointwiseInstance<Parameters> (&instances)[kSize], const PointwiseNeeds& needs) {
  tuning::Configs configs;
  for (const auto& instance : instances) {
    if (fits(instance, needs)) configs.push_back(config_of(instance.tile));
  }
  return configs;
}

/// The one with that tile. Throws Unsupported where there is none.
template <class Parameters, std::size_t kSize>
const PointwiseInstance<Parameters>& instance_with(const PointwiseInstance<Parameters> (&instances)[kSize],
                                                   const PointwiseNeeds& needs, const tuning::Config& config) {
  for (const auto& instance : instances) {
    if (fits(instance, needs) && config_of(instance.tile) == config) return instance;
  }
  throw Unsupported("gpu_tiles: there is no kernel of this problem with " + tuning::printed(config));
}

/// The tile that cost(instance) says is the cheapest.
template <class Parameters, std::size_t kSize, class Cost>
tuning::Config cheapest_tile(const PointwiseInstance<Parameters> (&instances)[kSize], const PointwiseNeeds& needs,
                             const Cost& cost) {
  const PointwiseInstance<Parameters>* best = nullptr;
  double least_cost = std::numeric_limits<double>::infinity();
  for (const auto& instance : instances) {
    if (!fits(instance, needs)) continue;
    const double candidate = cost(instance);
    if (candidate < least_cost) {
      least_cost = candidate;
      best = &instance;
    }
  }
  if (best == nullptr) throw Unsupported(std::string("pointwise: no kernel for ") + name_of(needs.dtype));
  return config_of(best->tile);
}

/// Empty, or why the sizes are too large for the kernels' 32-bit indices.
std::string too_large_for_pointwise(const Sizes& x, const Sizes& y);

/// Whether the kernels for tensors with neighbouring channels are the ones to use.
bool channels_inner(const ConstTensorView& in, const ConstTensorView& out);

PointwiseMatrix activation_matrix(const ConstTensorView& view, std::int64_t groups, bool channels_inner);
OutputMatrix output_matrix(const TensorView& view, std::int64_t groups, bool channels_inner);
PointwiseMatrix weight_matrix(const ConstTensorView& view, std::int64_t groups);
OutputMatrix weight_output_matrix(const TensorView& view, std::int64_t groups);

/// A product's problem: activations [pixels, groups * depth] to [pixels, groups * channels].
struct PointwiseProblem {
  DataType dtype;
  bool channels_inner;
  std::int64_t pixels, depth, channels, groups;
};

/// Sets everything about the tiles, and returns the kernel's cost.
double plan_product(const PointwiseProblem& problem, const PointwiseTile& tile, int resident, int multiprocessors,
                    PointwiseProductParameters& product);

/// How the sum over all positions is cut.
struct WeightGradientPlan {
  int output_tiles, channel_tiles;
  int splits, split_steps;  ///< of tile.depth positions each
  double cost;
};

/// The gradient of a weight [groups * outputs, channels] that took `problem.depth` channels to `problem.channels`.
WeightGradientPlan plan_weight_gradient(const PointwiseProblem& problem, const PointwiseTile& tile, int resident,
                                        int multiprocessors);

}  // namespace fusedsc::gpu
