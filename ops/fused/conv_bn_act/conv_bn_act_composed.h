/// conv_bn_act as a chain: patches, a pointwise convolution, BatchNorm in its prologues and epilogues. For every type,
/// memory layout and window; knows nothing of the device.
#pragma once

#include "fusedsc/fused/conv_bn_act.h"

namespace fusedsc {

/// Anything: windows laid out as channels, then a pointwise convolution.
Implementation<ConvBnActArguments> conv_bn_act_composed();
Implementation<ConvBnActBackwardArguments> conv_bn_act_backward_composed();

}  // namespace fusedsc
