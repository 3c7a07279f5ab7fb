/// Pointwise convolution on Hopper GPUs, backward: the input gradient of channels_last float32 without fusion, its
/// operands swapped (swap-AB). Products of TensorFloat-32 want k innermost in shared memory, where a weight has its
/// channels; so the weight is read as an image of planes, a position for each channel, and grad_y, whose k is
/// innermost, as the weight of as many channels as there are positions. Nothing needs to be transposed.
#pragma once

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/forward/pointwise/hopper_planes/pointwise_planes_plan.h"

namespace fusedsc::gpu::hopper {

class SwapAbInputPass {
 public:
  /// The device must be Hopper, and the tensors TMA's.
  static bool suits(const PointwiseBackwardArguments& arguments);

  explicit SwapAbInputPass(const PointwiseBackwardArguments& arguments);

  /// In microseconds; infinite if no tile fits.
  double cost() const { return launch_.cost; }

  void run(const PointwiseBackwardArguments& arguments, void* stream) const;

 private:
  PlanesCase case_;
  PlanesLaunch launch_;
};

}  // namespace fusedsc::gpu::hopper
