/// The weight of a sliding-channel convolution as that of a pointwise one, with zeros outside of the windows, and back.
/// For every type, on the CPU and on GPUs.
#pragma once

#include "fusedsc/common/sliding_channels.h"
#include "fusedsc/common/tensor_view.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

/// A dense [M, C, 1, 1] weight for the windows of a [M, C/groups, 1, 1] one, in the workspace.
TensorView take_expanded_weight(Arena& arena, const ConstTensorView& weight, const SlidingChannels& windows);

/// expanded[m][(first(m) + k) mod C] = weight[m][k], and 0 elsewhere. The pointwise convolution of x with it is the
/// sliding-channel one of a finite x; what is not finite outside of a window would make NaN of its zero.
void expand_sliding_channels(const SlidingChannels& windows, const ConstTensorView& weight, const TensorView& expanded,
                             const Execution& execution);

/// weight[m][k] = expanded[m][(first(m) + k) mod C]: of the gradient of an expanded weight, the weight's.
void gather_sliding_channels(const SlidingChannels& windows, const ConstTensorView& expanded, const TensorView& weight,
                             const Execution& execution);

}  // namespace fusedsc
