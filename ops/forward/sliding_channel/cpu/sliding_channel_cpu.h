/// The CPU's kernel for sliding-channel convolution, forward.
#pragma once

#include "fusedsc/forward/sliding_channel.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Multiplies what is not zero only. Positions of a tile (columns), depth and vectors of products.
tuning::Kernel<SlidingChannelArguments> sliding_channel_cpu();
/// What it is taken with.
tuning::Config sliding_channel_cpu_prior(const SlidingChannelArguments& a);

/// Whether the prior takes the CPU's kernels for windows, forward or backward.
bool suits_sliding_channel_cpu(const SlidingChannels& windows, std::int64_t filters);

}  // namespace fusedsc
