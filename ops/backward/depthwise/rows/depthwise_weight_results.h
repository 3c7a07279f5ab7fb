/// Where the gradients of a depthwise convolution's weight and bias go.
#pragma once

#include "fusedsc/common/gpu/tensors/tensor.h"

namespace fusedsc::gpu {

struct DepthwiseWeightResults {
  DeviceTensor grad_weight;  ///< or none
  void* grad_bias = nullptr;
};

/// One sum: of a tap, or, after the taps, of the bias.
template <class T>
FUSEDSC_DEVICE void leave_weight_gradient(const DepthwiseWeightResults& to, int taps, int kernel_width, int tap,
                                          int channel, Accumulator<T> sum) {
  if (tap == taps) {
    if (to.grad_bias != nullptr) from_accumulator(sum, static_cast<T*>(to.grad_bias)[channel]);
  } else if (to.grad_weight.data != nullptr) {
    const std::int64_t place = to.grad_weight.offset(channel, 0, tap / kernel_width, tap % kernel_width);
    from_accumulator(sum, elements_of<T>(to.grad_weight)[place]);
  }
}

}  // namespace fusedsc::gpu
