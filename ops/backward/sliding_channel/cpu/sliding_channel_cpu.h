/// The CPU's kernel for the gradients of sliding-channel convolution.
#pragma once

#include "fusedsc/backward/sliding_channel.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Multiplies what is not zero only. Positions of a tile (columns), depth and vectors of products.
tuning::Kernel<SlidingChannelBackwardArguments> sliding_channel_backward_cpu();
/// What it is taken with.
tuning::Config sliding_channel_backward_cpu_prior(const SlidingChannelBackwardArguments& a);

}  // namespace fusedsc
