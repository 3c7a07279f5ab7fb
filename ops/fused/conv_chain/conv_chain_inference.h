/// A chain of convolutions in eval mode with nothing kept: every BatchNorm and activation in the epilogue of its
/// convolution.
#pragma once

#include "fusedsc/fused/conv_chain.h"

namespace fusedsc {

/// Eval mode: every BatchNorm and activation in an epilogue.
Implementation<ConvChainArguments> conv_chain_inference();

}  // namespace fusedsc
