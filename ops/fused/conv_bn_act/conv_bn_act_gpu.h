/// The GPU's entries in the implementation lists of conv_bn_act.
#pragma once

#include "fusedsc/fused/conv_bn_act.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

Implementation<ConvBnActArguments> conv_bn_act_gpu();
Implementation<ConvBnActBackwardArguments> conv_bn_act_backward_gpu();

}  // namespace fusedsc
