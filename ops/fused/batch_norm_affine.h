/// BatchNorm as an affine map: per-channel arithmetic between two passes, and the two elementwise passes at the end
/// of an inverted residual, where no convolution follows that could take the normalisation into its prologue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"
#include "fusedsc/runtime/plan.h"

namespace fusedsc {

/// BatchNorm as an affine map, and before that, in training, what normalises, from a convolution's statistics:
///   invstd = 1/sqrt(m2/count + eps);
///   scale = weight*invstd, shift = bias - mean*scale.
/// Vectors are [C], accumulation type.
struct BatchNormFinalizeArguments {
  ConstChannelVector weight;  ///< or empty for 1
  ConstChannelVector bias;    ///< or empty for 0
  ConstChannelVector mean;    ///< the batch's in training, else the running one
  ConstChannelVector invstd;  ///< eval: that of the running variance
  ConstChannelVector m2;      ///< training: of `count` values per channel; empty in eval mode
  std::int64_t count = 0;     ///< N*H*W
  double eps = 0;
  ChannelVector batch_invstd;  ///< written in training; may be the same memory as m2
  /// Written in training, as running statistics want it: unbiased, m2/(count - 1), of one value 0; may be empty.
  ChannelVector batch_variance;
  ChannelVector scale, shift;  ///< written; may be empty
};
/// Of those with m2: what a convolution's Statistics can carry in place of this operator.
Normaliser normaliser_of(const BatchNormFinalizeArguments& arguments);
void batch_norm_finalize(const BatchNormFinalizeArguments& arguments, const Execution& execution);

/// What one BatchNorm normalises with.
struct Normalisation {
  ConstChannelVector weight, bias;  ///< or empty for 1 and 0
  ConstChannelVector mean, invstd;
};
/// That as an affine map.
BatchNormFinalizeArguments affine_of(const Normalisation& by, ChannelVector scale, ChannelVector shift);

/// What applies BatchNorm's backward to g, the gradient at its output; x is its raw input. In eval mode the statistics
/// are constants, and dx = weight*invstd*g. Neither x nor the sums may have a part in it, not even times 0: a NaN in
/// one image would reach the gradients of all. So both coefficients are then half of weight*invstd, offset is 0, and
/// the prologue's second tensor is g itself, which no kernel need know.
inline GradientPrologue gradient_prologue_of(const GradientNormaliser& normaliser, const ConstTensorView& g,
                                             const ConstTensorView& x) {
  return {normaliser.grad_scale, normaliser.output_scale, normaliser.offset, normaliser.training ? x : g};
}

/// One BatchNorm of a block. Vectors are [channels], accumulation type.
struct BatchNormParameters {
  ConstChannelVector weight, bias;  ///< or empty for 1 and 0
  double eps = 1e-5;
  /// Training: written, as in DscBlockArguments. Eval: mean and invstd are read.
  ChannelVector mean, invstd, variance;
  /// The affine map that follows from these. Training: written, if there is memory. Eval: read, in place of all others,
  /// or computed again. Backward: likewise, but `weight`, mean and invstd are read, too.
  ChannelVector scale, shift;
};

/// Gradients of one BatchNorm's parameters, accumulation type; data may be null.
struct BatchNormGradients {
  ChannelVector weight, bias;
};

/// The statistics of an empty batch: mean 0, variance 0 (which may be empty) and the invstd that goes with it.
void clear_statistics(ChannelVector mean, ChannelVector variance, ChannelVector invstd, double eps);

/// out = image_scale[n]*activation(scale[c]*x + shift[c]) + residual, one pass over memory.
struct BatchNormApplyArguments {
  ConstTensorView x;
  ConstChannelVector scale, shift;  ///< both, or neither for 1 and 0
  Activation activation = Activation::identity;
  ConstTensorView residual;  ///< or empty
  TensorView out;
  ConstChannelVector image_scale = {};  ///< [N], accumulation type; or empty for 1
};
void batch_norm_apply(const BatchNormApplyArguments& arguments, const Execution& execution);
std::size_t batch_norm_apply_workspace_bytes(const BatchNormApplyArguments& arguments, int threads);
Plan<BatchNormApplyArguments> plan_batch_norm_apply(const BatchNormApplyArguments& arguments, int threads);

/// Of g = image_scale[n]*grad_y*activation'(scale*x + shift): the two sums that BatchNorm's backward needs, g itself,
/// or both.
struct BatchNormReduceArguments {
  ConstTensorView x, grad_y;
  ConstChannelVector scale, shift;  ///< used by the activation's derivative only; both, or neither for 1 and 0
  Activation activation = Activation::identity;
  GradientSums sums;                    ///< or empty
  TensorView grad = {};                 ///< g, written; or null data
  ConstChannelVector image_scale = {};  ///< [N], accumulation type; or empty for 1; needs grad
};
void batch_norm_reduce(const BatchNormReduceArguments& arguments, const Execution& execution);
std::size_t batch_norm_reduce_workspace_bytes(const BatchNormReduceArguments& arguments, int threads);
Plan<BatchNormReduceArguments> plan_batch_norm_reduce(const BatchNormReduceArguments& arguments, int threads);

}  // namespace fusedsc
