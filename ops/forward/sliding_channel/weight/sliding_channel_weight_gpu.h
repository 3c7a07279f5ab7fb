/// The GPU's halves of sliding_channel_weight.h.
#pragma once

#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/common/tensor_view.h"

namespace fusedsc::gpu {

void expand_sliding_channels(const SlidingChannels& windows, const ConstTensorView& weight, const TensorView& expanded,
                             void* stream);
void gather_sliding_channels(const SlidingChannels& windows, const ConstTensorView& expanded, const TensorView& weight,
                             void* stream);

}  // namespace fusedsc::gpu
