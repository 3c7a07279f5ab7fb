/// The GPU kernels for the gradients of pointwise convolution, as the registry has them in its three roles: all that is
/// wanted, "pointwise_conv2d.backward"; and where an entry computes one gradient and leaves the other to the best there
/// is, "pointwise_conv2d.grad_input" and "pointwise_conv2d.grad_weight".
#pragma once

#include <span>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// All of them, the CPU's, too, in the order in which they are taken where they suit.
std::span<const tuning::Kernel<PointwiseBackwardArguments>> pointwise_backward_kernels();

/// By whichever entry is best for the input gradient alone, or for those of weight and bias.
Plan<PointwiseBackwardArguments> plan_pointwise_input_gradient(const PointwiseBackwardArguments& a, int threads);
Plan<PointwiseBackwardArguments> plan_pointwise_weight_gradient(const PointwiseBackwardArguments& a, int threads);

/// What is left when the input gradient is taken care of.
inline PointwiseBackwardArguments without_input(PointwiseBackwardArguments a) {
  a.grad_x = {};
  a.sums = {};
  a.grad_add = {};
  return a;
}

/// What is left when the weight gradient is taken care of.
inline PointwiseBackwardArguments without_weight(PointwiseBackwardArguments a) {
  a.grad_weight = {};
  return a;
}

/// Both gradients, each by the best there is for it. The prior does not take it: its other entries know when one after
/// the other is best.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_separate();
/// Anything, whatever the GPU. Of one gradient a tile's rows, columns and depth, and groups of warps that share the
/// depth; and the tile that it is taken with.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_tiles();
tuning::Config pointwise_backward_tiles_prior(const PointwiseBackwardArguments& a);
/// 16 bits or TF32, channels_last, by products of 32 threads: likewise, and stages.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_fragments();
tuning::Config pointwise_backward_fragments_prior(const PointwiseBackwardArguments& a);
/// Text made for the problem and compiled at run time, of one gradient: tiles of other sizes.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_generated();
/// Both gradients in one pass over x, for few outputs, whatever the GPU.
Implementation<PointwiseBackwardArguments> pointwise_backward_skinny();
/// By TMA and the warpgroup products of Hopper GPUs, channels_last. Of one gradient a tile's rows and columns and what
/// else its launch has (pointwise_launches.h, PointwiseWeightPass); of both there is nothing to choose.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper();
tuning::Config pointwise_backward_hopper_prior(const PointwiseBackwardArguments& a);
/// Likewise, contiguous: the input gradient, before that of the weight by whichever entry is best for it.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_planes();
tuning::Config pointwise_backward_hopper_planes_prior(const PointwiseBackwardArguments& a);
/// 16 bits or TF32, channels_last: both gradients in one pass that does not read the output.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_n_resident();
/// Both in one pass over x, for a prologue of x.
Implementation<PointwiseBackwardArguments> pointwise_backward_tf32_k_resident();
/// The weight gradient of 16-bit tensors of which one has few channels.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_narrow();
tuning::Config pointwise_backward_hopper_narrow_prior(const PointwiseBackwardArguments& a);
/// Whether it is the best for arguments that it can run: no other's tiles fit the channels, and there is enough to do.
bool suits_pointwise_narrow(const PointwiseBackwardArguments& a);
/// The weight gradient of contiguous tensors whose maps are no whole runs of 16 bytes, by that of channels_last ones.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_transposing();
/// Likewise: there is enough to do, and others would go over the tensors often.
bool suits_pointwise_transposing(const PointwiseBackwardArguments& a);
/// The weight gradient of float32 with TF32, and of contiguous 16-bit tensors, by sliced-K over warps.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_warp_sliced_k();
tuning::Config pointwise_backward_hopper_warp_sliced_k_prior(const PointwiseBackwardArguments& a);

}  // namespace fusedsc
