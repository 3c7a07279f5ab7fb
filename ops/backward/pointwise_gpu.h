/// The GPU's entries in the pointwise backward implementation list.
#pragma once

#include "fusedsc/backward/pointwise.h"

namespace fusedsc {

Implementation<PointwiseBackwardArguments> pointwise_backward_gpu();
/// Both gradients in one pass over x, for few outputs, whatever the GPU.
Implementation<PointwiseBackwardArguments> pointwise_backward_few();
/// As pointwise_hopper().
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper();
/// As pointwise_hopper_planes(): the input gradient, before that of the weight by whichever entry is best for it.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_planes();
/// Both gradients in one pass that does not read the output.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_joint();
Implementation<PointwiseBackwardArguments> pointwise_backward_tf32_joint();
/// Both in one pass over x, for a prologue of x.
Implementation<PointwiseBackwardArguments> pointwise_backward_tf32_gradients();
/// The weight gradient of 16-bit tensors of which one has few channels.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_narrow();
/// The weight gradient of contiguous tensors whose maps are no whole runs of 16 bytes, by that of channels_last ones.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_transposing();
/// The weight gradient of float32 with TF32, and of contiguous 16-bit tensors, by teams of warps.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_teams();

}  // namespace fusedsc
