/// Sliding-channel convolution of contiguous float tensors with TensorFloat-32 on GPUs, window by window
/// (FUSEDSC_HOPPER).
#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelArguments> sliding_channel_tf32_planes();

}  // namespace fusedsc
