/// The GPU's entries among the kernels of conv_bn_act, and what they are taken with.
#pragma once

#include "fusedsc/fused/conv_bn_act.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// channels_last images of 16 bits, or of float32 with TF32. Channels of a warp, rows of a tile.
tuning::Kernel<ConvBnActArguments> conv_bn_act_gpu();
tuning::Config conv_bn_act_gpu_prior(const ConvBnActArguments& block);

/// Likewise. Rows of a tile.
tuning::Kernel<ConvBnActBackwardArguments> conv_bn_act_backward_gpu();
tuning::Config conv_bn_act_backward_gpu_prior(const ConvBnActBackwardArguments& block);

}  // namespace fusedsc
