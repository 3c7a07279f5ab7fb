/// The members of the backward operators' arguments: common/members.h.
#pragma once

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/sliding_channel.h"
#include "fusedsc/common/problem_members.h"

namespace fusedsc {

FUSEDSC_MEMBERS(DepthwiseBackwardArguments, x, weight, window, prologue, grad_y, gradient_prologue, sums, grad_add,
                grad_x, grad_weight, grad_bias)
FUSEDSC_MEMBERS(PointwiseBackwardArguments, x, weight, groups, prologue, grad_y, gradient_prologue, sums, grad_add,
                grad_x, grad_weight, grad_bias, allow_tf32, windows)
FUSEDSC_MEMBERS(SlidingChannelBackwardArguments, x, weight, groups, overlap, allow_tf32, prologue, grad_y,
                gradient_prologue, sums, grad_add, grad_x, grad_weight, grad_bias)

}  // namespace fusedsc
