/// The inverted residual with squeeze-excite: [1x1 expand -> BN -> act ->] DW -> BN -> act -> times a gate per image
/// and channel -> 1x1 project -> BN [+ x]. The gate follows from the mean of each channel of what it multiplies by;
/// what is between the two, [N, E, 1, 1], is small and the caller's. Hence halves: up to the means, and from the gates
/// on.
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// The block without its gate. (That by itself is a chain of convolutions: conv_chain.h.)
struct InvertedResidualArguments {
  ConstTensorView x;               ///< [N, C, H, W]
  ConstTensorView expand_weight;   ///< [E, C, 1, 1]; or empty: no expansion, E = C
  ConstTensorView dw_weight;       ///< [E, 1, Kh, Kw]
  ConstTensorView project_weight;  ///< [M, E, 1, 1]
  BatchNormParameters expand_bn;   ///< unused without expansion
  BatchNormParameters dw_bn, project_bn;
  Window window;  ///< of the depthwise convolution
  Activation activation = Activation::relu6;
  bool residual = false;  ///< add x to the result: needs M = C and stride 1
  bool training = true;
  bool repeats_training = false;  ///< as of a chain of convolutions
  TensorView e;                   ///< [N, E, H, W] raw expansion output, written; unused without expansion
  TensorView d;                   ///< [N, E, OH, OW] raw depthwise output, written
  TensorView p;                   ///< [N, M, OH, OW] raw projection output, written
  TensorView y;                   ///< [N, M, OH, OW] the result
  bool allow_tf32 = false;        ///< as of a pointwise convolution
};

struct GatedResidualArguments {
  /// d is always wanted, e with an expansion; p is not in eval mode where
  /// its data is null.
  InvertedResidualArguments block;
  TensorView mean;       ///< [N, E, 1, 1] the first half's: of the activated depthwise output over its positions
  ConstTensorView gate;  ///< [N, E, 1, 1] the second half's
  TensorView z;          ///< [N, E, OH, OW] the second half's: the activated depthwise output times the gate, written
};

/// Writes e, d, the mean and what belongs to the first two BatchNorms.
void gated_residual_features(const GatedResidualArguments& arguments, const Execution& execution);
std::size_t gated_residual_features_workspace_bytes(const GatedResidualArguments& arguments, int threads);
Plan<GatedResidualArguments> plan_gated_residual_features(const GatedResidualArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_features(const GatedResidualArguments& arguments);

/// Reads d and the gate; writes z, p, y and what belongs to the last BatchNorm.
void gated_residual_projection(const GatedResidualArguments& arguments, const Execution& execution);
std::size_t gated_residual_projection_workspace_bytes(const GatedResidualArguments& arguments, int threads);
Plan<GatedResidualArguments> plan_gated_residual_projection(const GatedResidualArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_projection(const GatedResidualArguments& arguments);

struct InvertedResidualBackwardArguments {
  InvertedResidualArguments forward;  ///< as in forward, with e, d and p as forward left them; y is not looked at
  ConstTensorView grad_y;             ///< [N, M, OH, OW], any strides
  TensorView grad_d;                  ///< scratch [N, E, OH, OW]: gradient at the depthwise BN's output
  TensorView grad_e;                  ///< scratch [N, E, H, W]: gradient at the expansion BN's output
  TensorView grad_x, grad_expand_weight, grad_dw_weight, grad_project_weight;  ///< null data: not wanted
  BatchNormGradients grad_expand_bn, grad_dw_bn, grad_project_bn;
};

struct GatedResidualBackwardArguments {
  /// From half to half `grad_d` has the gradient at z; the half that reads
  /// it there leaves the one at the depthwise BatchNorm's output.
  InvertedResidualBackwardArguments block;
  ConstTensorView gate, z;
  TensorView grad_gate;       ///< [N, E, 1, 1] the second half's; null data: not wanted
  ConstTensorView grad_mean;  ///< [N, E, 1, 1] the first half's
};

/// Of the second half, which backward begins with: the gradients of project_weight, project_bn, z and the gate.
void gated_residual_projection_backward(const GatedResidualBackwardArguments& arguments, const Execution& execution);
std::size_t gated_residual_projection_backward_workspace_bytes(const GatedResidualBackwardArguments& arguments,
                                                               int threads);
Plan<GatedResidualBackwardArguments> plan_gated_residual_projection_backward(
    const GatedResidualBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_projection_backward(const GatedResidualBackwardArguments& arguments);

/// Of the first half: all others.
void gated_residual_features_backward(const GatedResidualBackwardArguments& arguments, const Execution& execution);
std::size_t gated_residual_features_backward_workspace_bytes(const GatedResidualBackwardArguments& arguments,
                                                             int threads);
Plan<GatedResidualBackwardArguments> plan_gated_residual_features_backward(
    const GatedResidualBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_features_backward(const GatedResidualBackwardArguments& arguments);

}  // namespace fusedsc
