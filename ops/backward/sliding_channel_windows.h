/// The input gradient of sliding-channel convolutions on Hopper GPUs, window by window.
#pragma once

#include "fusedsc/backward/sliding_channel.h"

namespace fusedsc::gpu::hopper {

/// Empty if it can be had so, else the reason why not.
std::string why_no_windows_input(const SlidingChannelBackwardArguments& arguments);
void run_windows_input(const SlidingChannelBackwardArguments& arguments, void* stream);

}  // namespace fusedsc::gpu::hopper
