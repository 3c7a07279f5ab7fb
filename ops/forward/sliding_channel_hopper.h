/// Sliding-channel convolution by the pointwise kernels of Hopper GPUs, which lay its weight out in block memory
/// themselves (FUSEDSC_HOPPER).
#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelArguments> sliding_channel_hopper();

}  // namespace fusedsc
