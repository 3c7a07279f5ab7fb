/// Sliding-channel convolution as a pointwise one whose weight has zeros outside of the windows. For every type, memory
/// layout and fusion; knows nothing of the device.
#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelArguments> sliding_channel_composed();

}  // namespace fusedsc
