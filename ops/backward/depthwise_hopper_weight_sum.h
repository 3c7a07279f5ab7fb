/// Where blocks of depthwise weight gradients for Hopper GPUs leave their sums.
#pragma once

#include "fusedsc/common/gpu/tensor.h"

namespace fusedsc::gpu::hopper {

struct DepthwiseWeightSums {
  float* partials = nullptr;  ///< [row][tap..., bias][channel]; null: there is one row, and that is the gradients
  DeviceTensor grad_weight;   ///< or none
  void* grad_bias = nullptr;
};

/// A gradient that is one already; after the taps that of the bias.
template <class T, int kKernel>
FUSEDSC_DEVICE void leave_gradient(const DepthwiseWeightSums& p, int tap, int channel, float sum) {
  if (tap == kKernel * kKernel) {
    if (p.grad_bias != nullptr) from_accumulator(sum, static_cast<T*>(p.grad_bias)[channel]);
  } else if (p.grad_weight.data != nullptr) {
    const std::int64_t place = p.grad_weight.offset(channel, 0, tap / kKernel, tap % kKernel);
    from_accumulator(sum, elements_of<T>(p.grad_weight)[place]);
  }
}

}  // namespace fusedsc::gpu::hopper
