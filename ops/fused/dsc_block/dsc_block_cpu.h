/// The CPU's fused entries among the block's kernels: tiles of d live in cache and nowhere else.
#pragma once

#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// The depthwise output lives in cache only. Rows of a tile of it, pieces of work, rows that are fetched ahead; blocks
/// of the products.
tuning::Kernel<DscBlockArguments> dsc_block_cpu();
tuning::Kernel<DscBlockBackwardArguments> dsc_block_backward_cpu();

/// What they are taken with.
tuning::Config dsc_block_cpu_prior(const DscBlockArguments& block);
tuning::Config dsc_block_backward_cpu_prior(const DscBlockBackwardArguments& block);

}  // namespace fusedsc
