/// The CPU's kernel for sliding-channel convolution, forward.
#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelArguments> sliding_channel_cpu();

/// Whether the prior takes the CPU's kernels for windows, forward or backward.
bool suits_sliding_channel_cpu(const SlidingChannels& windows, std::int64_t filters);

}  // namespace fusedsc
