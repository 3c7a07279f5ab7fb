/// From the weight gradient of a depthwise problem to launches on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise_hopper_patches_kernel.h"
#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

/// Empty, or why DepthwiseWeightPatchesPass cannot.
std::string why_no_weight_patches(const DepthwiseBackwardArguments& a);

/// Gradients of the weight and the bias: two launches, worked out but for addresses.
class DepthwiseWeightPatchesPass {
 public:
  /// With the tiles that are best for it.
  static DepthwiseWeightPatchesPass of(const DepthwiseBackwardArguments& a);
  DepthwiseWeightPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& patching);
  std::size_t workspace_bytes() const;
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  float* take_partials(Arena& arena) const;
  std::int64_t partial_rows() const { return std::int64_t{p_.splits} * p_.image_parts; }
  int taps() const { return window_ * window_; }

  void (*kernel_)(DepthwiseWeightPatchesParameters);
  DepthwiseWeightPatchesParameters p_;
  int window_ = 0;
};

}  // namespace fusedsc::gpu::hopper
