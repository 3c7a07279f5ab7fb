/// From the input gradient of a depthwise problem of stride 2 to a launch on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise_hopper_patches_parameters.h"

namespace fusedsc::gpu::hopper {

/// Empty, or why DepthwiseInputPatchesPass cannot.
std::string why_no_input_patches(const DepthwiseBackwardArguments& a);

/// A launch, worked out but for addresses.
class DepthwiseInputPatchesPass {
 public:
  /// With the tiles that are best for it.
  static DepthwiseInputPatchesPass of(const DepthwiseBackwardArguments& a);
  DepthwiseInputPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& patching);
  bool fits() const { return fits_; }
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  void (*kernel_)(DepthwisePatchesParameters);
  DepthwisePatchesParameters p_;
  bool fits_ = false;  ///< into block memory
};

}  // namespace fusedsc::gpu::hopper
