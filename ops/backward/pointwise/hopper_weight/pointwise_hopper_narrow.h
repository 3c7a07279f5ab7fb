/// Pointwise weight gradients on Hopper GPUs where x or grad_y has few channels: from the arguments to launches.
#pragma once

#include <string>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise/hopper_weight/pointwise_hopper_narrow_kernel.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/config.h"

namespace fusedsc::gpu::hopper {

struct NarrowInstance {
  using Kernel = void (*)(NarrowParameters);
  using Memory = int (*)(const NarrowParameters&);

  DataType dtype;
  bool positions_inner;
  int column_tiles, threads;  ///< of 8 channels of the narrower tensor; of a block, at most
  Kernel kernel;
  Memory memory;
};

/// A launch, worked out but for addresses.
class NarrowWeightPass {
 public:
  /// Why it cannot compute the weight gradient, or empty. The device must be Hopper.
  static std::string why_not(const PointwiseBackwardArguments& arguments);

  /// Of arguments that it can compute: positions that come at a time, and slices of warps.
  static tuning::Configs configs(const PointwiseBackwardArguments& arguments);

  /// As the prior has it, or as it was chosen. Throws Unsupported where that does not fit.
  explicit NarrowWeightPass(const PointwiseBackwardArguments& arguments, const tuning::Config& config = {});

  tuning::Config config() const;

  /// What it takes from the workspace.
  Four* take_partials(Arena& arena) const;

  void run(const PointwiseBackwardArguments& arguments, Arena& arena, void* stream) const;

 private:
  /// With so many slices, and so many positions to a step; false where that does not fit.
  bool set_cut(const PointwiseBackwardArguments& arguments, int slices, int depth);

  const NarrowInstance* instance_ = nullptr;
  NarrowParameters p_;
  int blocks_ = 1;
  bool is_output_wide_ = false;
};

}  // namespace fusedsc::gpu::hopper
