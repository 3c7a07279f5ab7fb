/// A chain of depthwise and pointwise convolutions, each with an optional bias, BatchNorm and activation: inverted
/// residuals, separable convolutions, heads of detectors. Statistics leave each convolution with its result, and the
/// next one normalises on load. Nothing normalised is ever stored but y.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "fusedsc/common/problem.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/implementation.h"

namespace fusedsc {

/// One convolution of a chain, and what is made of its result.
struct ConvStage {
  enum class Kind { depthwise, pointwise };

  Kind kind = Kind::pointwise;
  ConstTensorView weight;   ///< [C*m, 1, Kh, Kw] of a depthwise one, [M, C, 1, 1] of a pointwise one
  ConstChannelVector bias;  ///< one per channel of the result, dtype of x; or empty
  Window window;            ///< of a depthwise one
  std::optional<BatchNormParameters> bn;
  Activation activation = Activation::identity;  ///< behind the BatchNorm
  /// The convolution's raw result, its sizes and dtype those of conv_chain_sizes and of x: written by forward, where it
  /// is given; read by backward, where reads_raw says.
  TensorView raw;
};

/// Takes part between the passes of a batch that is spread over several processes: turns what a BatchNorm found of its
/// part into what follows from all parts (batch_norm_merge.h). Its work goes into the execution's stream.
struct ConvChainMerge {
  /// Forward: `mean` and, where invstd will be, the sums of squared deviations are those of the part; written are all
  /// vectors of the BatchNorm.
  std::function<void(std::size_t stage, const BatchNormParameters& bn)> statistics;
  /// Backward: the sums are those of the part, and so are the gradients of the BatchNorm's parameters, which stay so;
  /// written are the coefficients of the gradient prologue.
  std::function<void(std::size_t stage, const GradientSums& sums)> gradient;
};

/// y = branch_scale[n]*chain(input_activation(x)) [+ x].
struct ConvChainArguments {
  ConstTensorView x;              ///< [N, C, H, W]
  std::vector<ConvStage> stages;  ///< at least one
  Activation input_activation = Activation::identity;
  bool residual = false;            ///< add x as it is: needs the result's sizes to be those of x
  ConstChannelVector branch_scale;  ///< [N], accumulation type; or empty for 1
  /// Of all BatchNorms: whether they take the batch's statistics. In eval mode `scale` and `shift` are read where they
  /// are given, and computed where they are not.
  bool training = true;
  /// In eval mode: what a training pass computed is computed again, from the statistics that it left. Each convolution
  /// has the kernel and config of that pass, so that results have the same bits.
  bool repeats_training = false;
  TensorView y;
  bool allow_tf32 = false;                ///< as of a pointwise convolution
  const ConvChainMerge* merge = nullptr;  ///< of a training pass whose batch is a part of another; or null
};

/// The sizes of each stage's result. Throws InvalidArgument, naming the stage, where they do not fit together.
std::vector<Sizes> conv_chain_sizes(const ConvChainArguments& chain);
/// Whether a pass over the raw result of the last convolution ends the chain. If not, that result is y.
bool ends_in_pass(const ConvChainArguments& chain);
/// Whether backward reads `raw` of this stage.
bool reads_raw(const ConvChainArguments& chain, std::size_t stage);

void conv_chain(const ConvChainArguments& arguments, const Execution& execution);
std::size_t conv_chain_workspace_bytes(const ConvChainArguments& arguments, int threads);
Plan<ConvChainArguments> plan_conv_chain(const ConvChainArguments& arguments, int threads);
std::vector<Candidate> explain_conv_chain(const ConvChainArguments& arguments, int threads = 1);

/// Any of them with null data is not wanted.
struct ConvStageGradients {
  TensorView weight;
  ChannelVector bias;  ///< dtype of x
  BatchNormGradients bn;
};

struct ConvChainBackwardArguments {
  ConvChainArguments forward;              ///< as in forward, with `raw` as forward left it; y is not looked at
  ConstTensorView grad_y;                  ///< y's sizes, any strides
  std::vector<ConvStageGradients> stages;  ///< as many as forward has
  TensorView grad_x;                       ///< null data: not wanted
};

void conv_chain_backward(const ConvChainBackwardArguments& arguments, const Execution& execution);
std::size_t conv_chain_backward_workspace_bytes(const ConvChainBackwardArguments& arguments, int threads);
Plan<ConvChainBackwardArguments> plan_conv_chain_backward(const ConvChainBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_conv_chain_backward(const ConvChainBackwardArguments& arguments, int threads = 1);

}  // namespace fusedsc
