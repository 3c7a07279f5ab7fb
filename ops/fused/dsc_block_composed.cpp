#include "fusedsc/fused/dsc_block_composed.h"

#include <algorithm>

#include "fusedsc/fused/composed.h"
#include "fusedsc/fused/dsc_block_parts.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace {

struct ComposedForward {
  const DscBlockArguments& block;
  Arena arena;
  ChannelVector m2, scale, shift;
  DepthwiseArguments depthwise;
  PointwiseArguments pointwise;

  ComposedForward(const DscBlockArguments& block_, void* workspace) : block(block_), arena(workspace) {
    depthwise = depthwise_of(block);
    for (ChannelVector* vector : {&m2, &scale, &shift}) *vector = take_channels(arena, depthwise.y);
    if (block.training) depthwise.statistics = {block.mean, m2};
    pointwise.x = block.d;
    pointwise.weight = block.pw_weight;
    pointwise.bias = block.pw_bias;
    pointwise.prologue = {scale, shift, block.activation};
    pointwise.y = block.y;
  }

  std::size_t workspace_bytes(int threads) const {
    return arena.used() + std::max(depthwise_conv2d_workspace_bytes(depthwise, threads),
                                   pointwise_conv2d_workspace_bytes(pointwise, threads));
  }

  void run(const Execution& execution) const {
    depthwise_conv2d(depthwise, rest_of(execution, arena));
    if (block.training) finish_statistics(block, m2);
    affine_of(block, scale, shift);
    pointwise_conv2d(pointwise, rest_of(execution, arena));
  }
};

struct ComposedBackward {
  const DscBlockBackwardArguments& block;
  Arena arena;
  ChannelVector scale, shift;
  MiddleGradient middle;
  PointwiseBackwardArguments pointwise;
  DepthwiseBackwardArguments depthwise;

  ComposedBackward(const DscBlockBackwardArguments& block_, void* workspace) : block(block_), arena(workspace) {
    for (ChannelVector* vector : {&scale, &shift, &middle.sum_grad, &middle.sum_grad_times_centered, &middle.grad_scale,
                                  &middle.output_scale, &middle.offset}) {
      *vector = take_channels(arena, block.d);
    }
    pointwise = pointwise_backward_of(block);
    pointwise.x = block.d;
    pointwise.prologue = {scale, shift, block.activation};
    pointwise.sums = {block.mean, middle.sum_grad, middle.sum_grad_times_centered};
    pointwise.grad_x = block.grad_bn;
    depthwise = depthwise_backward_of(block);
    depthwise.grad_y = block.grad_bn;
    depthwise.gradient_prologue = {middle.grad_scale, middle.output_scale, middle.offset, block.d};
  }

  std::size_t workspace_bytes(int threads) const {
    std::size_t bytes = pointwise_conv2d_backward_workspace_bytes(pointwise, threads);
    if (wants_depthwise_gradients(block)) {
      bytes = std::max(bytes, depthwise_conv2d_backward_workspace_bytes(depthwise, threads));
    }
    return arena.used() + bytes;
  }

  void run(const Execution& execution) const {
    affine_of(block, scale, shift);
    pointwise_conv2d_backward(pointwise, rest_of(execution, arena));
    finish_batch_norm_gradient(block, middle);
    if (wants_depthwise_gradients(block)) depthwise_conv2d_backward(depthwise, rest_of(execution, arena));
  }
};

}  // namespace

Implementation<DscBlockArguments> dsc_block_composed() {
  return composed<ComposedForward, DscBlockArguments>([](const DscBlockArguments& block) {
    return std::string(block.d ? "" : "d is not stored (recompute=False or None stores it)");
  });
}

Implementation<DscBlockBackwardArguments> dsc_block_backward_composed() {
  return composed<ComposedBackward, DscBlockBackwardArguments>(
      [](const DscBlockBackwardArguments& block) -> std::string {
        if (!block.d) return "d was not stored by forward";
        if (!block.grad_bn) return "there is no memory for grad_bn";
        return "";
      });
}

}  // namespace fusedsc
