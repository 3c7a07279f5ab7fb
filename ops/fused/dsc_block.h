/// The fused depthwise-separable block, DW -> BatchNorm -> activation -> PW or SCC, that trains. Between the two
/// convolutions nothing is stored but per-channel statistics, and d (the raw depthwise output) where the caller asks
/// for it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// y = PW(activation(BN(DW(x)))), the last a grouped or a sliding-channel convolution where it is asked for. The
/// fused scale, shift and activation of TVM's depthwise convolution example, taken through training.
struct DscBlockArguments {
  ConstTensorView x;              ///< [N, C, H, W]
  ConstTensorView dw_weight;      ///< [C*m, 1, Kh, Kw]
  ConstChannelVector dw_bias;     ///< [C*m], dtype of x; or empty
  ConstTensorView pw_weight;      ///< [M, C*m/groups, 1, 1]
  ConstChannelVector pw_bias;     ///< [M], dtype of x; or empty
  std::int64_t groups = 1;        ///< of PW: divides C*m and M; or of SCC
  std::optional<double> overlap;  ///< given: SCC with these groups and this overlap instead of PW
  Window window;
  ConstChannelVector bn_weight;  ///< [C*m] gamma, or empty for 1
  ConstChannelVector bn_bias;    ///< [C*m] beta, or empty for 0
  double eps = 1e-5;
  Activation activation = Activation::relu6;
  bool training = true;
  /// Training: written, the batch's mean and 1/sqrt(var + eps) (biased variance). Eval: read, the running ones.
  ChannelVector mean;      ///< [C*m]
  ChannelVector invstd;    ///< [C*m]
  ChannelVector variance;  ///< [C*m] training: written, the unbiased variance (for running statistics); may be empty
  /// [C*m] the affine map that follows from these. Training: written; may be empty. Eval: read, in place of mean,
  /// invstd, bn_weight and bn_bias; or empty: computed again.
  ChannelVector scale, shift;
  TensorView d;  ///< [N, C*m, OH, OW] raw depthwise output, stored for backward; null data: recomputed where needed
  TensorView y;  ///< [N, M, OH, OW]
  Epilogue epilogue;        ///< of y; eval mode only
  bool allow_tf32 = false;  ///< as of a pointwise convolution
};

void dsc_block(const DscBlockArguments& arguments, const Execution& execution);
std::size_t dsc_block_workspace_bytes(const DscBlockArguments& arguments, int threads);
Plan<DscBlockArguments> plan_dsc_block(const DscBlockArguments& arguments, int threads);
std::vector<Candidate> explain_dsc_block(const DscBlockArguments& arguments, int threads = 1);

/// Gradients of the block; input-centric (Wang et al., DSXplore, section IV-B). Any gradient with null data is not
/// wanted.
struct DscBlockBackwardArguments {
  ConstTensorView x, dw_weight;
  ConstChannelVector dw_bias;
  ConstTensorView pw_weight;
  std::int64_t groups = 1;  ///< as in forward, likewise overlap
  std::optional<double> overlap;
  Window window;
  ConstChannelVector bn_weight, bn_bias;
  double eps = 1e-5;
  Activation activation = Activation::relu6;
  bool training = true;             ///< eval: mean and invstd are constants
  ConstChannelVector mean, invstd;  ///< what forward wrote (training) or read (eval)
  /// As in forward, or empty. It is not read: where d is recomputed, it and eps are part of the problem that forward
  /// chose d's kernel for, which is then taken again.
  ConstChannelVector variance;
  ConstChannelVector scale, shift;  ///< what forward wrote (training) or read (eval), or empty: computed again
  ConstTensorView d;                ///< what forward stored, or null data: recomputed
  ConstTensorView grad_y;           ///< [N, M, OH, OW], any strides
  TensorView grad_bn;  ///< scratch [N, C*m, OH, OW]: gradient at BN's output, stored between the passes; null data:
                       ///< recomputed
  TensorView grad_x, grad_dw_weight, grad_pw_weight;
  ChannelVector grad_dw_bias, grad_pw_bias;    ///< dtype of x
  ChannelVector grad_bn_weight, grad_bn_bias;  ///< accumulation type
  bool allow_tf32 = false;                     ///< as in forward
};

void dsc_block_backward(const DscBlockBackwardArguments& arguments, const Execution& execution);
std::size_t dsc_block_backward_workspace_bytes(const DscBlockBackwardArguments& arguments, int threads);
Plan<DscBlockBackwardArguments> plan_dsc_block_backward(const DscBlockBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_dsc_block_backward(const DscBlockBackwardArguments& arguments, int threads = 1);

}  // namespace fusedsc
