/// The gradients of a sliding-channel convolution of contiguous float tensors with TensorFloat-32 on GPUs, window by
/// window (FUSEDSC_HOPPER).
#pragma once

#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_tf32_planes();

}  // namespace fusedsc
