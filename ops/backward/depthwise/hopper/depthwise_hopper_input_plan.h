/// From the input gradient of a depthwise problem of stride 2 to a launch on a Hopper GPU.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_parameters.h"

namespace fusedsc::gpu::hopper {

/// A launch, worked out but for addresses.
class DepthwiseInputPatchesPass {
 public:
  /// Does not fit() where there is no kernel of such tiles.
  DepthwiseInputPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& patching);
  bool fits() const { return fits_; }
  int stages() const { return p_.stages; }  ///< fewer than wanted where there is no room
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  void (*kernel_)(DepthwisePatchesParameters);
  DepthwisePatchesParameters p_;
  bool fits_ = false;  ///< into shared memory
};

}  // namespace fusedsc::gpu::hopper
