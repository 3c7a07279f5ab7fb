/// The CPU's entry in the sliding-channel forward implementation list.
#pragma once

#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

Implementation<SlidingChannelArguments> sliding_channel_cpu();

/// Why a convolution with these windows does not run window by window on the CPU; empty if it does.
std::string why_not_by_windows(const SlidingChannels& windows, std::int64_t filters);

}  // namespace fusedsc
