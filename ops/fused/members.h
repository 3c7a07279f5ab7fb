/// The members of the blocks' arguments: common/members.h.
#pragma once

#include "fusedsc/common/problem_members.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/fused/conv_bn_act.h"
#include "fusedsc/fused/conv_chain.h"
#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/fused/gated_residual.h"

namespace fusedsc {

FUSEDSC_MEMBERS(BatchNormParameters, weight, bias, eps, mean, invstd, variance, scale, shift)
FUSEDSC_MEMBERS(BatchNormGradients, weight, bias)
FUSEDSC_MEMBERS(ConvBnActArguments, x, weight, window, bn_weight, bn_bias, eps, activation, training, mean, invstd,
                variance, scale, shift, y, allow_tf32)
FUSEDSC_MEMBERS(ConvBnActBackwardArguments, x, weight, window, bn_weight, bn_bias, activation, training, mean, invstd,
                grad_y, grad_x, grad_weight, grad_bn_weight, grad_bn_bias, allow_tf32)
FUSEDSC_MEMBERS(ConvStage, kind, weight, bias, window, bn, activation, raw)
FUSEDSC_MEMBERS(ConvChainArguments, x, stages, input_activation, residual, branch_scale, training, repeats_training, y,
                allow_tf32, merge)
FUSEDSC_MEMBERS(ConvStageGradients, weight, bias, bn)
FUSEDSC_MEMBERS(ConvChainBackwardArguments, forward, grad_y, stages, grad_x)
FUSEDSC_MEMBERS(DscBlockArguments, x, dw_weight, dw_bias, pw_weight, pw_bias, groups, overlap, window, bn_weight,
                bn_bias, eps, activation, training, mean, invstd, variance, scale, shift, d, y, epilogue, allow_tf32)
FUSEDSC_MEMBERS(DscBlockBackwardArguments, x, dw_weight, dw_bias, pw_weight, groups, overlap, window, bn_weight,
                bn_bias, eps, activation, training, mean, invstd, variance, scale, shift, d, grad_y, grad_bn, grad_x,
                grad_dw_weight, grad_pw_weight, grad_dw_bias, grad_pw_bias, grad_bn_weight, grad_bn_bias, allow_tf32)
FUSEDSC_MEMBERS(InvertedResidualArguments, x, expand_weight, dw_weight, project_weight, expand_bn, dw_bn, project_bn,
                window, activation, residual, training, repeats_training, e, d, p, y, allow_tf32)
FUSEDSC_MEMBERS(GatedResidualArguments, block, mean, gate, z)
FUSEDSC_MEMBERS(InvertedResidualBackwardArguments, forward, grad_y, grad_d, grad_e, grad_x, grad_expand_weight,
                grad_dw_weight, grad_project_weight, grad_expand_bn, grad_dw_bn, grad_project_bn)
FUSEDSC_MEMBERS(GatedResidualBackwardArguments, block, gate, z, grad_gate, grad_mean)

}  // namespace fusedsc
