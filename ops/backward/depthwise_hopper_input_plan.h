/// From the input gradient of a depthwise problem of stride 2 to a launch on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise_hopper_parameters.h"

namespace fusedsc::gpu::hopper {

/// Empty, or why DepthwiseInputTilesPass cannot.
std::string why_no_input_tiles(const DepthwiseBackwardArguments& a);

/// A launch, worked out but for addresses.
class DepthwiseInputTilesPass {
 public:
  /// With the tiles that are best for it.
  static DepthwiseInputTilesPass of(const DepthwiseBackwardArguments& a);
  DepthwiseInputTilesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& patching);
  int stages() const { return p_.stages; }
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  void (*kernel_)(DepthwiseTilesParameters);
  DepthwiseTilesParameters p_;
};

}  // namespace fusedsc::gpu::hopper
