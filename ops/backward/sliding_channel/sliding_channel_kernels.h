/// The registry's entries of GPU kernels for the gradients of sliding-channel convolution (FUSEDSC_HOPPER); and what
/// the prior takes them with.
#pragma once

#include <span>

#include "fusedsc/backward/sliding_channel.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// The entries of role "sliding_channel_conv2d.backward", the CPU's, too.
std::span<const tuning::Kernel<SlidingChannelBackwardArguments>> sliding_channel_backward_kernels();

/// By the pointwise kernels of channels_last tensors, which lay the weight out in shared memory themselves, and store
/// of the weight's gradient the windows only. Its configs are theirs.
tuning::Kernel<SlidingChannelBackwardArguments> sliding_channel_backward_hopper();
tuning::Config sliding_channel_backward_hopper_prior(const SlidingChannelBackwardArguments& a);
/// Contiguous float32 with TensorFloat-32, window by window.
Implementation<SlidingChannelBackwardArguments> sliding_channel_backward_tf32_planes();

namespace gpu::hopper {

using tuning::Config;
using tuning::Configs;
using tuning::Kernel;
using tuning::Knob;

/// 16 bits, channels_last, nothing fused, windows of which each shares half with the next one: both gradients by one
/// launch, window by window. Channels of a block, outputs of a tile of the weight's gradient, groups of warps, cluster.
Kernel<SlidingChannelBackwardArguments> sliding_channel_backward_windows();
bool suits_sliding_channel_backward_windows(const SlidingChannelBackwardArguments& a);
Config sliding_channel_backward_windows_prior(const SlidingChannelBackwardArguments& a);

}  // namespace gpu::hopper
}  // namespace fusedsc
