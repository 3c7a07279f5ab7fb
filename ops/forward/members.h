/// The members of the forward operators' arguments: common/members.h.
#pragma once

#include "fusedsc/common/problem_members.h"
#include "fusedsc/forward/depthwise.h"
#include "fusedsc/forward/pointwise.h"
#include "fusedsc/forward/sliding_channel.h"
#include "fusedsc/forward/sparse.h"

namespace fusedsc {

FUSEDSC_MEMBERS(DepthwiseArguments, x, weight, bias, window, prologue, epilogue, statistics, y)
FUSEDSC_MEMBERS(PointwiseArguments, x, weight, bias, groups, prologue, prologue_is_new, epilogue, statistics, y,
                allow_tf32, windows)
FUSEDSC_MEMBERS(MaxPooling, size, stride)
FUSEDSC_MEMBERS(SparseArguments, x, x_channels, x_counts, weight, packed, bias, groups, window, activation, pooling, y,
                y_channels, y_counts, config)
FUSEDSC_MEMBERS(SlidingChannelArguments, x, weight, bias, groups, overlap, prologue, epilogue, statistics, y,
                allow_tf32)

}  // namespace fusedsc
