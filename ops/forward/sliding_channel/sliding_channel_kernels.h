/// The registry's entries of GPU kernels for sliding-channel convolution, forward (FUSEDSC_HOPPER); and what the prior
/// takes them with.
#pragma once

#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/sliding_channel.h"

namespace fusedsc {

/// The entries of role "sliding_channel_conv2d.forward", the CPU's, too.
std::span<const tuning::Kernel<SlidingChannelArguments>> sliding_channel_kernels();

/// Contiguous float32 with TensorFloat-32, window by window.
Implementation<SlidingChannelArguments> sliding_channel_tf32_planes();

namespace gpu::hopper {

/// 16 bits, channels_last, nothing fused, windows of which each shares half with the next one: window by window
/// (sliding_channel_windows_kernel.h). Outputs of a block, filters of each of its windows, groups of warps.
Kernel<SlidingChannelArguments> sliding_channel_windows();
/// Whether the prior takes it, of arguments that it can run.
bool suits_sliding_channel_windows(const SlidingChannelArguments& a);
Config sliding_channel_windows_prior(const SlidingChannelArguments& a);

// By the pointwise kernels of these names, which lay the weight out in shared memory themselves.
Kernel<SlidingChannelArguments> sliding_channel_resident();
Kernel<SlidingChannelArguments> sliding_channel_sliced_k();
Kernel<SlidingChannelArguments> sliding_channel_rows();
Config sliding_channel_resident_prior(const SlidingChannelArguments& a);
Config sliding_channel_sliced_k_prior(const SlidingChannelArguments& a);
Config sliding_channel_rows_prior(const SlidingChannelArguments& a);
/// Which of the three is taken.
NamedChoice sliding_channel_nhwc_prior(const SlidingChannelArguments& a);

}  // namespace gpu::hopper
}  // namespace fusedsc
