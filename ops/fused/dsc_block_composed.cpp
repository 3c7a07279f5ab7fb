#include "fusedsc/fused/dsc_block_composed.h"

#include "fusedsc/fused/dsc_block_parts.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

/// What lies between the two convolutions: in the caller's memory or, where it is not to be kept, in the workspace.
TensorView middle_memory(const TensorView& kept, const ConstTensorView& like, Arena& arena) {
  if (kept) return kept;
  const std::int64_t bytes = like.elements() * static_cast<std::int64_t>(size_of(like.dtype));
  return {arena.take<char>(bytes), like.dtype, like.sizes, like.strides, like.device};
}

struct ComposedForward {
  const DscBlockArguments& block;
  Arena arena;
  ChannelVector scale, shift;
  DepthwiseArguments depthwise;
  PointwiseArguments pointwise;

  ComposedForward(const DscBlockArguments& block_, void* workspace) : block(block_), arena(workspace) {
    depthwise = depthwise_of(block);
    depthwise.y = middle_memory(block.d, depthwise.y, arena);
    for (ChannelVector* vector : {&scale, &shift}) *vector = take_channels(arena, depthwise.y);
    if (block.training) depthwise.statistics = statistics_of(block, scale, shift);
    pointwise.x = depthwise.y;
    pointwise.weight = block.pw_weight;
    pointwise.bias = block.pw_bias;
    pointwise.prologue = {scale, shift, block.activation};
    pointwise.y = block.y;
    pointwise.allow_tf32 = block.allow_tf32;
  }

  struct Plans {
    Plan<DepthwiseArguments> depthwise;
    Plan<PointwiseArguments> pointwise;

    std::size_t workspace_bytes() const { return most_workspace_bytes(depthwise, pointwise); }
  };

  Plans plan(int threads) const {
    return {plan_depthwise_conv2d(depthwise, threads), plan_pointwise_conv2d(pointwise, threads)};
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    plans.depthwise.run(depthwise, rest);
    if (!block.training) batch_norm_finalize(affine_of(normalisation_of(block), scale, shift), rest);
    plans.pointwise.run(pointwise, rest);
  }
};

struct ComposedBackward {
  const DscBlockBackwardArguments& block;
  Arena arena;
  ChannelVector scale, shift;
  MiddleGradient middle;
  DepthwiseArguments recomputed;  ///< what d comes from where forward did not keep it
  PointwiseBackwardArguments pointwise;
  DepthwiseBackwardArguments depthwise;

  ComposedBackward(const DscBlockBackwardArguments& block_, void* workspace) : block(block_), arena(workspace) {
    recomputed = depthwise_of(block);
    if (!block.d) recomputed.y = middle_memory({}, recomputed.y, arena);
    const ConstTensorView d = block.d ? block.d : ConstTensorView(recomputed.y);
    const TensorView grad_bn = middle_memory(block.grad_bn, recomputed.y, arena);
    for (ChannelVector* vector : {&scale, &shift, &middle.sum_grad, &middle.sum_grad_times_centered, &middle.grad_scale,
                                  &middle.output_scale, &middle.offset}) {
      *vector = take_channels(arena, d);
    }
    pointwise = pointwise_backward_of(block);
    pointwise.x = d;
    pointwise.prologue = {scale, shift, block.activation};
    pointwise.sums = {block.mean, middle.sum_grad, middle.sum_grad_times_centered};
    pointwise.grad_x = grad_bn;
    depthwise = depthwise_backward_of(block);
    depthwise.grad_y = grad_bn;
    depthwise.gradient_prologue = {middle.grad_scale, middle.output_scale, middle.offset, d};
  }

  struct Plans {
    Plan<DepthwiseArguments> recomputed;  ///< likewise the last: empty where there is nothing to do
    Plan<PointwiseBackwardArguments> pointwise;
    Plan<DepthwiseBackwardArguments> depthwise;

    std::size_t workspace_bytes() const { return most_workspace_bytes(recomputed, pointwise, depthwise); }
  };

  Plans plan(int threads) const {
    Plans plans;
    if (!block.d) plans.recomputed = plan_depthwise_conv2d(recomputed, threads);
    plans.pointwise = plan_pointwise_conv2d_backward(pointwise, threads);
    if (wants_depthwise_gradients(block)) plans.depthwise = plan_depthwise_conv2d_backward(depthwise, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    if (!block.d) plans.recomputed.run(recomputed, rest);
    batch_norm_finalize(affine_of(normalisation_of(block), scale, shift), rest);
    plans.pointwise.run(pointwise, rest);
    batch_norm_coefficients(coefficients_of(block, middle), rest);
    if (wants_depthwise_gradients(block)) plans.depthwise.run(depthwise, rest);
  }
};

/// On a CPU another implementation keeps what is not stored in the cache.
bool keeps_in_cache(const ConstTensorView& x) { return x.device == Device::cpu; }

}  // namespace

Implementation<DscBlockArguments> dsc_block_composed() {
  return composed<ComposedForward, DscBlockArguments>([](const DscBlockArguments& block) {
    return std::string(block.d || !keeps_in_cache(block.x) ? ""
                                                           : "d is not stored (recompute=False or None stores it)");
  });
}

Implementation<DscBlockBackwardArguments> dsc_block_backward_composed() {
  return composed<ComposedBackward, DscBlockBackwardArguments>(
      [](const DscBlockBackwardArguments& block) -> std::string {
        if (!keeps_in_cache(block.x)) return "";
        if (!block.d) return "d was not stored by forward";
        if (!block.grad_bn) return "there is no memory for grad_bn";
        return "";
      });
}

}  // namespace fusedsc
