/// From the weight gradient of a depthwise problem to launches on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/depthwise_hopper_weight_kernel.h"
#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

/// Empty, or why DepthwiseWeightTilesPass cannot.
std::string why_no_weight_tiles(const DepthwiseBackwardArguments& a);

/// Gradients of the weight and the bias: two launches, worked out but for addresses.
class DepthwiseWeightTilesPass {
 public:
  /// With the tiles that are best for it.
  static DepthwiseWeightTilesPass of(const DepthwiseBackwardArguments& a);
  DepthwiseWeightTilesPass(const DepthwiseBackwardArguments& a, const DepthwiseTiling& tiling);
  std::size_t workspace_bytes() const;
  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const;

 private:
  float* take_partials(Arena& arena) const;
  std::int64_t partial_rows() const { return std::int64_t{p_.splits} * p_.image_parts; }
  int taps() const { return window_ * window_; }

  void (*kernel_)(DepthwiseWeightTilesParameters);
  DepthwiseWeightTilesParameters p_;
  int window_ = 0, stride_ = 1, box_channels_;
};

}  // namespace fusedsc::gpu::hopper
