/// A dense convolution as a product of matrices: what lies under its window becomes the channels of a larger tensor,
/// which a pointwise convolution multiplies. And the elementwise end of BatchNorm's backward pass.
#pragma once

#include "fusedsc/common/problem.h"
#include "fusedsc/runtime/execution.h"

namespace fusedsc {

/// The order of a patch's elements, which is that of the weight's in memory.
enum class PatchOrder { channels_first, channels_last };

/// patches[n][k][oh][ow] = x[n][c][oh*stride + kh*dilation - padding][...], zero outside of x; k counts (c, kh, kw), or
/// (kh, kw, c) where channels are last.
struct GatherPatchesArguments {
  ConstTensorView x;  ///< [N, C, H, W]
  Window window;
  PatchOrder order = PatchOrder::channels_first;
  TensorView patches;  ///< [N, C*Kh*Kw, OH, OW], dtype of x
};
void gather_patches(const GatherPatchesArguments& arguments, const Execution& execution);

/// The gradient of that: each element of x adds up the patches that it is in.
struct ScatterPatchesArguments {
  ConstTensorView patches;
  Window window;
  PatchOrder order = PatchOrder::channels_first;
  TensorView x;
};
void scatter_patches(const ScatterPatchesArguments& arguments, const Execution& execution);

/// out = grad_scale*g + output_scale*x + offset, with g = grad_y * activation'(scale*x + shift). Without output_scale
/// and offset, as in eval mode: out = grad_scale*g.
struct BatchNormGradientArguments {
  ConstTensorView x;       ///< raw
  ConstTensorView grad_y;  ///< of the activation's output
  ConstChannelVector scale, shift, grad_scale, output_scale, offset;
  Activation activation = Activation::identity;
  TensorView out;  ///< may be x
};
void batch_norm_gradient(const BatchNormGradientArguments& arguments, const Execution& execution);

}  // namespace fusedsc
