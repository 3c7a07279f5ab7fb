/// From a depthwise problem with fusion to a launch on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise/hopper/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise/hopper_tiles/depthwise_hopper_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

/// A launch, worked out but for addresses.
class DepthwiseTilesPass {
 public:
  DepthwiseTilesPass(const DepthwiseArguments& a, const DepthwiseTiling& tiling);
  std::size_t workspace_bytes(const DepthwiseArguments& a) const;
  void run(const DepthwiseArguments& a, const Execution& execution) const;
  int stages() const { return p_.stages; }  ///< fewer than wanted where there is no room

 private:
  using Kernel = void (*)(DepthwiseTilesParameters);
  Kernel kernel_;
  DepthwiseTilesParameters p_;
  int box_channels_;
  float* take_partials(const DepthwiseArguments& a, Arena& arena) const;
};

}  // namespace fusedsc::gpu::hopper
