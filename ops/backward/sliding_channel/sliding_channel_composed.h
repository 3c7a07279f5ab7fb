/// The gradients of a sliding-channel convolution as those of a pointwise one whose weight has zeros outside of the
/// windows. For every type, memory layout and fusion; knows nothing of the device.
#pragma once

#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_composed();

}  // namespace fusedsc
