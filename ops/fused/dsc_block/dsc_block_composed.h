/// The block as a chain of the plain operators, BatchNorm in their prologues and epilogues: what runs where d (and, in
/// backward, grad_bn) are stored. Knows nothing of the device.
#pragma once

#include "fusedsc/fused/dsc_block.h"

namespace fusedsc {

Implementation<DscBlockArguments> dsc_block_composed();
Implementation<DscBlockBackwardArguments> dsc_block_backward_composed();

}  // namespace fusedsc
