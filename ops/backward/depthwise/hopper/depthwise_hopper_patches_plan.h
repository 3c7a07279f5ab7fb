/// From the weight gradient of a depthwise problem to launches on a Hopper GPU.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_patches_kernel.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_splits.h"

namespace fusedsc::gpu::hopper {

/// Gradients of the weight and the bias: one or two launches, worked out but for addresses.
class DepthwiseWeightPatchesPass {
 public:
  /// cluster_size: of blocks that have all there is to do; 0: what is best, with clusters or without; kNoCluster.
  DepthwiseWeightPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& patching,
                             int cluster_size = 0);
  std::size_t workspace_bytes() const;
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;
  int stages() const { return p_.stages; }  ///< fewer than wanted where there is no room
  int cluster() const { return p_.sums.cluster; }

 private:
  DepthwiseWeightKernels<DepthwiseWeightPatchesParameters> kernels_;
  DepthwiseWeightPatchesParameters p_;
  int window_ = 0;
};

}  // namespace fusedsc::gpu::hopper
