/// From a depthwise problem to a launch on a Hopper GPU.
#pragma once

#include <string>

#include "fusedsc/common/gpu/depthwise_hopper_plan.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/depthwise_hopper_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {

DepthwisePatching choose_patching(const DepthwiseArguments& a);

/// What tiles of `rows` rows of outputs take, and so many stages as there is room for.
void cut_outputs(DepthwiseTilesParameters& p, int rows);

/// A launch, worked out but for addresses.
class DepthwiseTilesPass {
 public:
  DepthwiseTilesPass(const DepthwiseArguments& a, const DepthwisePatching& patching);
  double evenness() const { return hopper::evenness(p_); }
  int stages() const { return p_.stages; }
  std::size_t workspace_bytes(const DepthwiseArguments& a) const;
  void run(const DepthwiseArguments& a, const Execution& execution) const;

 private:
  using Kernel = void (*)(DepthwiseTilesParameters);
  Kernel kernel_;
  DepthwiseTilesParameters p_;
  float* take_partials(const DepthwiseArguments& a, Arena& arena) const;
};

}  // namespace fusedsc::gpu::hopper
