/// The block as a chain of the plain operators, BatchNorm in their prologues and epilogues: what runs where d (and, in
/// backward, grad_bn) are stored. Knows nothing of the device.
#pragma once

#include "fusedsc/fused/dsc_block.h"

namespace fusedsc {

/// Anything: a chain of the operators, BatchNorm in their prologues and epilogues.
Implementation<DscBlockArguments> dsc_block_composed();
Implementation<DscBlockBackwardArguments> dsc_block_backward_composed();

/// Whether the prior takes them: where what lies between the convolutions is to be stored, or no other kernel keeps it.
bool suits_dsc_block_composed(const DscBlockArguments& block);
bool suits_dsc_block_backward_composed(const DscBlockBackwardArguments& block);

}  // namespace fusedsc
