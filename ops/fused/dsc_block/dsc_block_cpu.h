/// The CPU's fused entries in the block's implementation lists: tiles of d live in cache and nowhere else.
#pragma once

#include "fusedsc/fused/dsc_block.h"

namespace fusedsc {

Implementation<DscBlockArguments> dsc_block_cpu();
Implementation<DscBlockBackwardArguments> dsc_block_backward_cpu();

}  // namespace fusedsc
