/// The fused block in eval mode by the GPU kernels for Hopper: their entries in the implementation list.
#pragma once

#include <string>

#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<DscBlockArguments> dsc_block_hopper();
/// For few channels.
Implementation<DscBlockArguments> dsc_block_hopper_narrow();

namespace gpu::hopper {

/// Why neither can run the block; empty if they might.
std::string why_not_one_kernel(const DscBlockArguments& block);

}  // namespace gpu::hopper

}  // namespace fusedsc
