/// The fused block in eval mode by the GPU kernels for Hopper: the registry's entries, and what the prior says of them.
#pragma once

#include <optional>
#include <string>

#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// Eval mode, channels_last, 16 bits: the depthwise output lives in shared memory.
tuning::Kernel<DscBlockArguments> dsc_block_hopper();
tuning::Config dsc_block_hopper_prior(const DscBlockArguments& block);
/// The same, where the prior takes the kernel.
std::optional<tuning::Config> dsc_block_hopper_suiting(const DscBlockArguments& block);

/// Eval mode, at most 32 outputs: the depthwise output lives in registers.
tuning::Kernel<DscBlockArguments> dsc_block_hopper_narrow();
bool suits_dsc_block_hopper_narrow(const DscBlockArguments& block);
tuning::Config dsc_block_hopper_narrow_prior(const DscBlockArguments& block);

namespace gpu::hopper {

/// Why neither can run the block; empty if they might.
std::string why_not_one_kernel(const DscBlockArguments& block);

}  // namespace gpu::hopper

}  // namespace fusedsc
