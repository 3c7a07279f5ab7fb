/// The whole inverted residual, [1x1 expand -> BN -> act ->] DW -> BN -> act -> 1x1 project -> BN [+ x], with every
/// BatchNorm in the seams: statistics leave each convolution with its output, and the next one normalises on load.
/// Raw convolution outputs e, d and p are stored once; nothing normalised ever is, but the result.
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// One BatchNorm of the block. Vectors are [channels], accumulation type.
struct BatchNormParameters {
  ConstChannelVector weight, bias;  ///< or empty for 1 and 0
  double eps = 1e-5;
  /// Training: written, as in DscBlockArguments. Eval: mean and invstd are read.
  ChannelVector mean, invstd, variance;
  /// The affine map that follows from these. Training: written, if there is memory. Eval: read, in place of all others,
  /// or computed again. Backward: likewise, but `weight`, mean and invstd are read, too.
  ChannelVector scale, shift;
};

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
  // In eval mode with null data, all of them: nobody wants them.
  TensorView e;             ///< [N, E, H, W] raw expansion output, written; unused without expansion
  TensorView d;             ///< [N, E, OH, OW] raw depthwise output, written
  TensorView p;             ///< [N, M, OH, OW] raw projection output, written
  TensorView y;             ///< [N, M, OH, OW] the result
  bool allow_tf32 = false;  ///< as of a pointwise convolution
};

void inverted_residual(const InvertedResidualArguments& arguments, const Execution& execution);
std::size_t inverted_residual_workspace_bytes(const InvertedResidualArguments& arguments, int threads);
Plan<InvertedResidualArguments> plan_inverted_residual(const InvertedResidualArguments& arguments, int threads);
std::vector<Candidate> explain_inverted_residual(const InvertedResidualArguments& arguments);

/// Gradients of one BatchNorm's parameters, accumulation type; data may be null.
struct BatchNormGradients {
  ChannelVector weight, bias;
};

struct InvertedResidualBackwardArguments {
  InvertedResidualArguments forward;  ///< as in forward, with e, d and p as forward left them; y is not looked at
  ConstTensorView grad_y;             ///< [N, M, OH, OW], any strides
  TensorView grad_d;                  ///< scratch [N, E, OH, OW]: gradient at the depthwise BN's output
  TensorView grad_e;                  ///< scratch [N, E, H, W]: gradient at the expansion BN's output
  TensorView grad_x, grad_expand_weight, grad_dw_weight, grad_project_weight;  ///< null data: not wanted
  BatchNormGradients grad_expand_bn, grad_dw_bn, grad_project_bn;
};

void inverted_residual_backward(const InvertedResidualBackwardArguments& arguments, const Execution& execution);
std::size_t inverted_residual_backward_workspace_bytes(const InvertedResidualBackwardArguments& arguments, int threads);
Plan<InvertedResidualBackwardArguments> plan_inverted_residual_backward(
    const InvertedResidualBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_inverted_residual_backward(const InvertedResidualBackwardArguments& arguments);

}  // namespace fusedsc
