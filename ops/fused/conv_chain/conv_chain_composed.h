/// A chain of convolutions as a sequence of the plain operators, its BatchNorms in their prologues and epilogues. Knows
/// nothing of the device.
#pragma once

#include "fusedsc/fused/conv_chain.h"

namespace fusedsc {

/// Anything: a chain of the operators, BatchNorm in prologues, each raw result written once.
Implementation<ConvChainArguments> conv_chain_composed();
Implementation<ConvChainBackwardArguments> conv_chain_backward_composed();

}  // namespace fusedsc
