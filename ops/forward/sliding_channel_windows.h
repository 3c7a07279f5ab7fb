#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

/// Hopper GPUs, 16 bits, channels_last, no seams, windows of which each shares half with the next one: window by window
/// (sliding_channel_windows_kernel.h).
Implementation<SlidingChannelArguments> sliding_channel_windows();

}  // namespace fusedsc
