/// A dense convolution with its BatchNorm and activation, that trains: how convolutional networks begin, a few channels
/// of an image in, some tens out. The raw output of the convolution is stored nowhere.
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// y = activation(BN(conv(x))). A bias of the convolution would be taken away again by BatchNorm: there is none.
struct ConvBnActArguments {
  ConstTensorView x;       ///< [N, C, H, W]
  ConstTensorView weight;  ///< [M, C, Kh, Kw]
  Window window;
  ConstChannelVector bn_weight;  ///< [M] gamma, or empty for 1
  ConstChannelVector bn_bias;    ///< [M] beta, or empty for 0
  double eps = 1e-5;
  Activation activation = Activation::relu6;
  bool training = true;
  /// Training: written, the batch's mean and 1/sqrt(var + eps) (biased variance). Eval: read, the running ones.
  ChannelVector mean;      ///< [M]
  ChannelVector invstd;    ///< [M]
  ChannelVector variance;  ///< [M] training: written, the unbiased variance (for running statistics); may be empty
  /// [M] eval: the affine map that follows from these, read in place of mean, invstd, bn_weight and bn_bias; or empty:
  /// computed again.
  ConstChannelVector scale, shift;
  TensorView y;             ///< [N, M, OH, OW]
  bool allow_tf32 = false;  ///< as of a pointwise convolution
};

/// y's sizes. Throws InvalidArgument where x, weight and window do not go together.
Sizes conv_output_sizes(const Sizes& x, const Sizes& weight, const Window& window);

void conv_bn_act(const ConvBnActArguments& arguments, const Execution& execution);
std::size_t conv_bn_act_workspace_bytes(const ConvBnActArguments& arguments, int threads);
Plan<ConvBnActArguments> plan_conv_bn_act(const ConvBnActArguments& arguments, int threads);
std::vector<Candidate> explain_conv_bn_act(const ConvBnActArguments& arguments, int threads = 1);

/// Its gradients. Any gradient with null data is not wanted.
struct ConvBnActBackwardArguments {
  ConstTensorView x, weight;
  Window window;
  ConstChannelVector bn_weight, bn_bias;
  Activation activation = Activation::relu6;
  bool training = true;             ///< eval: mean and invstd are constants
  ConstChannelVector mean, invstd;  ///< what forward wrote (training) or read (eval)
  ConstTensorView grad_y;           ///< [N, M, OH, OW], any strides
  TensorView grad_x, grad_weight;
  ChannelVector grad_bn_weight, grad_bn_bias;  ///< accumulation type
  bool allow_tf32 = false;                     ///< as in forward
};

void conv_bn_act_backward(const ConvBnActBackwardArguments& arguments, const Execution& execution);
std::size_t conv_bn_act_backward_workspace_bytes(const ConvBnActBackwardArguments& arguments, int threads);
Plan<ConvBnActBackwardArguments> plan_conv_bn_act_backward(const ConvBnActBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_conv_bn_act_backward(const ConvBnActBackwardArguments& arguments, int threads = 1);

}  // namespace fusedsc
