/// From the weight gradient of a depthwise problem to launches on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_kernel.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_splits.h"

namespace fusedsc::gpu::hopper {

/// Empty, or why there is no weight gradient by products. window: empty, or why there is none of such a window.
std::string why_no_weight_gradient(const DepthwiseBackwardArguments& a, const std::string& window);

/// Gradients of the weight and the bias: one or two launches, worked out but for addresses.
class DepthwiseWeightTilesPass {
 public:
  /// cluster_size: of blocks that have all there is to do; 0: what is best, with clusters or without; kNoCluster.
  DepthwiseWeightTilesPass(const DepthwiseBackwardArguments& a, const DepthwiseTiling& tiling, int cluster_size = 0);
  std::size_t workspace_bytes() const;
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;
  int stages() const { return p_.stages; }  ///< fewer than wanted where there is no room
  int cluster() const { return p_.sums.cluster; }
  double evenness() const { return hopper::evenness(p_); }

 private:
  DepthwiseWeightKernels<DepthwiseWeightTilesParameters> kernels_;
  DepthwiseWeightTilesParameters p_;
  int window_ = 0, stride_ = 1, box_channels_;
};

}  // namespace fusedsc::gpu::hopper
