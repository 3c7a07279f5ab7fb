/// From a depthwise problem without fusion to a launch on a Hopper GPU.
#pragma once

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_kernel.h"

namespace fusedsc::gpu::hopper {

/// What tiles of `rows` rows of outputs take, and as many stages as there is room for; or false: there is none.
bool cut_outputs(DepthwisePatchesParameters& p, int rows);

/// To TMA: what is read as x, and y.
void describe_tensors(DepthwisePatchesParameters& p, const ConstTensorView& x, const ConstTensorView& y);

/// A launch, worked out but for addresses.
class DepthwisePatchesPass {
 public:
  /// Does not fit() where there is no kernel of such tiles.
  DepthwisePatchesPass(const DepthwiseArguments& a, const DepthwisePatching& patching);
  double evenness() const { return hopper::evenness(p_); }
  bool fits() const { return fits_; }
  int stages() const { return p_.stages; }  ///< fewer than wanted where there is no room
  void run(const DepthwiseArguments& a, const Execution& execution) const;

 private:
  using Kernel = void (*)(DepthwisePatchesParameters);
  Kernel kernel_ = nullptr;
  DepthwisePatchesParameters p_;
  bool fits_ = false;  ///< into shared memory
};

}  // namespace fusedsc::gpu::hopper
