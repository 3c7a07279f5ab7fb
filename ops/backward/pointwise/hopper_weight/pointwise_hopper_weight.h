/// Pointwise convolution on Hopper GPUs, weight and bias gradients: from the arguments to launches.
#pragma once

#include <string>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_weight_parameters.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

struct PointwiseWeightInstance {
  using Kernel = void (*)(PointwiseWeightParameters);
  using Memory = int (*)(int stages);

  DataType dtype;
  PointwiseWeightKind kind;
  int rows, columns;  ///< of a tile of the weight
  int slices, depth;  ///< warpgroups that have positions of their own, or 1; how many come to each at a time
  int threads;
  Kernel kernel;
  Memory memory;
  bool for_few;   ///< for little work (LatencyCost), and
  bool for_many;  ///< for more
};

/// The launches, worked out but for addresses.
class PointwiseWeightPass {
 public:
  /// Whether TMA can go over the tensors. The device must be Hopper.
  static bool suits(const PointwiseBackwardArguments& arguments);

  /// Of arguments that suit: tiles of the weight, groups of warps with positions of their own, how many positions come
  /// at a time, stages, clusters, and blocks that share a tile's positions out.
  static tuning::Configs configs(const PointwiseBackwardArguments& arguments);

  /// By the cheapest tile, or one that was chosen. Throws Unsupported where that does not fit.
  explicit PointwiseWeightPass(const PointwiseBackwardArguments& arguments, const tuning::Config& config = {});

  tuning::Config config() const;

  /// What is between the kernels; null: there is one kernel.
  struct Memory {
    Four* partials = nullptr;
    float* bias_partials = nullptr;
  };
  Memory take_memory(const PointwiseBackwardArguments& arguments, Arena& arena) const;

  void run(const PointwiseBackwardArguments& arguments, Arena& arena, void* stream) const;

 private:
  const PointwiseWeightInstance* instance_ = nullptr;
  PointwiseWeightParameters p_;
};

}  // namespace fusedsc::gpu::hopper
