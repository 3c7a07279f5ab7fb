/// Both gradients of sliding-channel convolutions on Hopper GPUs, window by window, by one launch.
#pragma once

#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc {

/// Hopper GPUs, 16 bits, channels_last, no seams, windows of which each shares half with the next one.
Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_windows();

}  // namespace fusedsc
