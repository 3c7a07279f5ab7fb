/// The CPU's entry in the sliding-channel backward implementation list.
#pragma once

#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_cpu();

}  // namespace fusedsc
