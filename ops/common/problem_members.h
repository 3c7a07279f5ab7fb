/// The members of problems: common/members.h.
#pragma once

#include "fusedsc/common/members.h"
#include "fusedsc/common/problem.h"
#include "fusedsc/common/sliding_channels.h"

namespace fusedsc {

FUSEDSC_MEMBERS(Padding, left, right, top, bottom)
FUSEDSC_MEMBERS(Window, kernel, stride, dilation, padding)
FUSEDSC_MEMBERS(Prologue, scale, shift, activation)
FUSEDSC_MEMBERS(Epilogue, scale, shift, activation, residual)
FUSEDSC_MEMBERS(Normaliser, weight, bias, eps, invstd, variance, scale, shift)
FUSEDSC_MEMBERS(Statistics, mean, m2, normaliser, is_before_pointwise)
FUSEDSC_MEMBERS(GradientPrologue, grad_scale, output_scale, offset, output, output_is_of_x)
FUSEDSC_MEMBERS(GradientNormaliser, weight, invstd, training, grad_scale, output_scale, offset, grad_weight, grad_bias)
FUSEDSC_MEMBERS(GradientSums, mean, grad, grad_times_centered, normaliser)
FUSEDSC_MEMBERS(SlidingChannels, channels, width, step, cycle)

}  // namespace fusedsc
