/// The gradients of a sliding-channel convolution by the pointwise kernels of Hopper GPUs, which lay its weight out in
/// block memory themselves, and store of the weight's gradient the windows only (FUSEDSC_HOPPER).
#pragma once

#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_hopper();

}  // namespace fusedsc
