/// From a depthwise problem without seams to a launch on a Hopper GPU.
#pragma once

#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise_hopper_patches_kernel.h"

namespace fusedsc::gpu::hopper {

/// What tiles of `rows` rows of outputs take, and as many stages as there is room for; or false: there is none.
bool cut_outputs(DepthwisePatchesParameters& p, int rows);

/// Whether tiles of whole rows in segments are best: where boxes of channels would be partly empty.
bool wants_segments(const DepthwiseArguments& a);

/// To the copy engine: what is read as x, and y.
void describe_tensors(DepthwisePatchesParameters& p, const ConstTensorView& x, const ConstTensorView& y);

/// A launch, worked out but for addresses.
class DepthwisePatchesPass {
 public:
  /// With the tiles that are best for it.
  static DepthwisePatchesPass of(const DepthwiseArguments& a);
  DepthwisePatchesPass(const DepthwiseArguments& a, const DepthwisePatching& patching);
  double evenness() const { return hopper::evenness(p_); }
  bool fits() const { return fits_; }
  void run(const DepthwiseArguments& a, const Execution& execution) const;

 private:
  using Kernel = void (*)(DepthwisePatchesParameters);
  Kernel kernel_;
  DepthwisePatchesParameters p_;
  bool fits_ = false;  ///< into block memory
};

}  // namespace fusedsc::gpu::hopper
