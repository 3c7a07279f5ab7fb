/// The fused block in eval mode by the GPU kernel for Hopper: its entry in the implementation list.
#pragma once

#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<DscBlockArguments> dsc_block_hopper();

}  // namespace fusedsc
