/// The GPU kernels for the gradients of pointwise convolution, as the registry has them in its three roles: all that is
/// wanted, "pointwise_conv2d.backward"; and one of two gradients, which "gpu_separate" leaves to the best there is for
/// it, "pointwise_conv2d.grad_input" and "pointwise_conv2d.grad_weight". An entry computes one gradient, or both in one
/// pass.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// All of them, the CPU's, too, in the order in which they are taken where they suit.
std::span<const tuning::Kernel<PointwiseBackwardArguments>> pointwise_backward_kernels();

/// By whichever entry is best for the gradients of weight and bias, as one of two.
Plan<PointwiseBackwardArguments> plan_pointwise_weight_gradient(const PointwiseBackwardArguments& a, int threads);
/// What is left behind a pass of the gradient prologue: one gradient by whichever entry is best for it, or both.
Plan<PointwiseBackwardArguments> plan_behind_prologue(const PointwiseBackwardArguments& a, int threads);

inline bool wants_weight(const PointwiseBackwardArguments& a) { return a.grad_weight || a.grad_bias; }
inline bool wants_both(const PointwiseBackwardArguments& a) { return a.grad_x && wants_weight(a); }

/// Of an entry that computes one gradient, or that of the input or of the weight alone: why not what is wanted.
inline std::string why_not_one_gradient(const PointwiseBackwardArguments& a) {
  const bool is_one = static_cast<bool>(a.grad_x) != wants_weight(a);
  return is_one ? "" : "it computes one gradient; \"gpu_separate\" computes both, one after the other";
}
inline std::string why_not_input(const PointwiseBackwardArguments& a) {
  return a.grad_x ? why_not_one_gradient(a) : "the input gradient is not wanted";
}
inline std::string why_not_weight(const PointwiseBackwardArguments& a) {
  return wants_weight(a) ? why_not_one_gradient(a) : "the weight gradient is not wanted";
}

/// What is left when the input gradient is taken care of.
inline PointwiseBackwardArguments without_input(PointwiseBackwardArguments a) {
  a.grad_x = {};
  a.sums = {};
  a.grad_add = {};
  return a;
}

/// What is left when the gradients of weight and bias are taken care of.
inline PointwiseBackwardArguments without_weight(PointwiseBackwardArguments a) {
  a.grad_weight = {};
  a.grad_bias = {};
  return a;
}

/// Both gradients, one after the other in the same workspace, by plans for without_weight() and without_input().
inline Plan<PointwiseBackwardArguments> one_after_other(Plan<PointwiseBackwardArguments> input,
                                                        Plan<PointwiseBackwardArguments> weight) {
  return {std::max(input.workspace_bytes, weight.workspace_bytes),
          [input = std::move(input.unchecked_run), weight = std::move(weight.unchecked_run)](
              const PointwiseBackwardArguments& like, const Execution& execution) {
            input(without_weight(like), execution);
            weight(without_input(like), execution);
          }};
}

/// Both gradients, each by the best there is for it.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_separate();
/// Anything, whatever the GPU: a tile's rows, columns and depth, and groups of warps that share the depth; and the tile
/// that it is taken with.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_tiles();
tuning::Config pointwise_backward_tiles_prior(const PointwiseBackwardArguments& a);
/// 16 bits or TF32, channels_last, by products of 32 threads: likewise, and stages.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_fragments();
tuning::Config pointwise_backward_fragments_prior(const PointwiseBackwardArguments& a);
/// Text made for the problem and compiled at run time, of one gradient: tiles of other sizes.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_generated();
/// Both gradients in one pass over x, for few outputs, whatever the GPU.
Implementation<PointwiseBackwardArguments> pointwise_backward_skinny();
/// Whether x has so many elements that one pass over it gains more than its sums over blocks take.
bool suits_pointwise_skinny(const PointwiseBackwardArguments& a);
/// By TMA and the warpgroup products of Hopper GPUs, channels_last: a tile's rows and columns and what else its launch
/// has (pointwise_launches.h, PointwiseWeightPass).
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper();
tuning::Config pointwise_backward_hopper_prior(const PointwiseBackwardArguments& a);
/// Likewise, contiguous: the input gradient.
tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_hopper_planes();
tuning::Config pointwise_backward_hopper_planes_prior(const PointwiseBackwardArguments& a);
/// 16 bits or TF32, channels_last: both gradients in one pass that does not read the output.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_n_resident();
/// Whether there are so many positions that it is worth what its blocks leave of their sums.
bool suits_pointwise_n_resident(const PointwiseBackwardArguments& a);
/// Both in one pass over x: for a prologue of x, or without any.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_k_resident();
/// Whether it is the best for arguments that it can run.
bool suits_pointwise_k_resident(const PointwiseBackwardArguments& a);
/// Behind a pass that writes down what the gradient prologue makes of grad_y, all that is wanted by the best there is.
Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_prologue_pass();
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
