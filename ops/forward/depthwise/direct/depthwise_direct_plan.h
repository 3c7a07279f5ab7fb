/// From a small depthwise problem to a launch whose threads have an output or a few: pure functions of the problem and
/// of the GPU's size.
#pragma once

#include <span>
#include <string>

#include "fusedsc/forward/depthwise/direct/depthwise_direct.h"
#include "fusedsc/forward/depthwise/rows/depthwise_plan.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu {

/// What a thread has: neighbouring channels of some rows (or pairs of rows and columns of an input gradient).
struct DirectTile {
  int channels, rows;
};

/// A kernel that was compiled, and what for.
template <class Parameters>
struct DirectInstance {
  DataType dtype;
  int kernel, stride;  ///< stride 0: any
  bool channels_last;
  DirectTile tile;
  int loads;  ///< of a thread, apart from weights
  void (*run)(Parameters);
  std::size_t memory;  ///< of a block
};

/// What threads share out: the rows and columns of images that they begin at. In a channels_last one neighbouring
/// threads have neighbouring channels.
struct DirectGrid {
  std::int64_t batch, channels, height, width;
  bool channels_last;

  std::int64_t threads(const DirectTile& tile) const;
};

struct DirectProblem;

/// Whether a pass is small enough: what measured best on an H200 (docs/log/performance_gpu_depthwise.md).
bool suits_direct(const DirectProblem& problem);

/// What a launch takes, in cycles: those of a thread by itself, and of the more of a multiprocessor's instructions and
/// accesses to its first-level cache. Counted, not fitted.
double direct_cost(std::int64_t threads, const DirectTile& tile, int loads, int taps, int element_bytes,
                   int multiprocessors);

DirectWork plan_direct_work(const DirectGrid& grid, const DirectTile& tile, int element_bytes);

/// Empty, or why there are no kernels for a pass over `from` to `to`, or over both; and with that weight.
std::string why_no_direct(const ConstTensorView& from, const ConstTensorView& to, const Window& window);
std::string why_no_direct(const ConstTensorView& from, const ConstTensorView& to, const ConstTensorView& weight,
                          const Window& window);

/// Without its address.
template <class Void>
BasicCompactTensor<Void> compact(const BasicTensorView<Void*>& tensor) {
  const auto stride = [&](int axis) {
    return tensor.sizes[axis] > 1 ? static_cast<std::uint32_t>(tensor.strides[axis]) : 0;
  };
  return {nullptr, stride(0), stride(1), stride(2), stride(3)};
}

/// 1 if a weight is dense, -1 if it is dense and rotated by 180°, else 0.
int direct_step(const ConstTensorView& weight);

/// Where it begins in memory, whichever way around it is.
const void* lowest_address(const ConstTensorView& weight);

/// A pass that instances of these kernels may compute.
struct DirectProblem {
  DirectGrid grid;
  const Window& window;
  const ConstTensorView &weight, &from, &to;

  int element_bytes() const { return static_cast<int>(size_of(from.dtype)); }
  int taps() const { return static_cast<int>(weight.sizes[2] * weight.sizes[3]); }
  /// Whether so many neighbouring channels can be loaded and stored as one vector.
  bool joins(int channels) const {
    return channels == 1 ||
           (channels_join(channels, {from, to}) && reinterpret_cast<std::uintptr_t>(lowest_address(weight)) %
                                                           static_cast<std::uintptr_t>(channels * element_bytes()) ==
                                                       0);
  }
};

template <class Parameters>
bool can_run(const DirectInstance<Parameters>& instance, const DirectProblem& problem) {
  return instance.dtype == problem.from.dtype && instance.kernel == problem.window.kernel[0] &&
         (instance.stride == 0 || instance.stride == problem.window.stride[0]) &&
         instance.channels_last == problem.grid.channels_last && problem.joins(instance.tile.channels);
}

inline tuning::Config config_of(const DirectTile& tile) {
  return {{tuning::Knob::channels, tile.channels}, {tuning::Knob::rows, tile.rows}};
}

template <class Parameters>
tuning::Configs direct_configs(std::span<const DirectInstance<Parameters>> instances, const DirectProblem& problem) {
  tuning::Configs configs;
  for (const DirectInstance<Parameters>& instance : instances) {
    if (can_run(instance, problem)) configs.push_back(config_of(instance.tile));
  }
  return configs;
}

/// Throws Unsupported if there is none.
template <class Parameters>
const DirectInstance<Parameters>& direct_instance(const char* name,
                                                  std::span<const DirectInstance<Parameters>> instances,
                                                  const DirectProblem& problem, const tuning::Config& config) {
  for (const DirectInstance<Parameters>& instance : instances) {
    if (config_of(instance.tile) == config && can_run(instance, problem)) return instance;
  }
  throw Unsupported(std::string(name) + ": there is no kernel of threads with " + tuning::printed(config) +
                    " for these arguments");
}

/// The one that costs least.
template <class Parameters>
tuning::Config direct_prior_config(std::span<const DirectInstance<Parameters>> instances,
                                   const DirectProblem& problem) {
  const DirectInstance<Parameters>* best = nullptr;
  double least = 0;
  for (const DirectInstance<Parameters>& instance : instances) {
    if (!can_run(instance, problem)) continue;
    const double cost = direct_cost(problem.grid.threads(instance.tile), instance.tile, instance.loads, problem.taps(),
                                    problem.element_bytes(), multiprocessors());
    if (best != nullptr && cost >= least) continue;
    best = &instance;
    least = cost;
  }
  return config_of(best->tile);
}

}  // namespace fusedsc::gpu
