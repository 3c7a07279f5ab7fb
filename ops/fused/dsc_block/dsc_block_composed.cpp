#include "fusedsc/fused/dsc_block/dsc_block_composed.h"

#include "fusedsc/backward/sliding_channel.h"
#include "fusedsc/forward/recomputed.h"
#include "fusedsc/fused/dsc_block/dsc_block_parts.h"
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

/// The block's second convolution, forward or backward: pointwise or, where there is an overlap, sliding-channel.
template <class Pointwise, class Sliding>
struct SecondConvolution {
  bool slides = false;
  Pointwise pointwise;
  Sliding sliding;

  template <class Block>
  explicit SecondConvolution(const Block& block) : slides(block.overlap.has_value()) {
    pointwise.groups = sliding.groups = block.groups;
    sliding.overlap = block.overlap.value_or(0);
  }

  /// set(arguments): what the two name alike.
  template <class Set>
  void set(const Set& set) {
    slides ? set(sliding) : set(pointwise);
  }

  struct Plans {
    Plan<Pointwise> pointwise;  ///< one of the two is empty
    Plan<Sliding> sliding;
    std::size_t workspace_bytes = 0;
  };

  Plans plan(Plan<Pointwise> (*plan_pointwise)(const Pointwise&, int),
             Plan<Sliding> (*plan_sliding)(const Sliding&, int), int threads) const {
    Plans plans;
    if (slides) plans.sliding = plan_sliding(sliding, threads);
    else plans.pointwise = plan_pointwise(pointwise, threads);
    plans.workspace_bytes = most_workspace_bytes(plans.pointwise, plans.sliding);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    slides ? plans.sliding.run(sliding, execution) : plans.pointwise.run(pointwise, execution);
  }
};

struct ComposedForward {
  using Second = SecondConvolution<PointwiseArguments, SlidingChannelArguments>;

  const DscBlockArguments& block;
  Arena arena;
  ChannelVector scale, shift;
  DepthwiseArguments depthwise;
  Second second;

  ComposedForward(const DscBlockArguments& block_, void* workspace) : block(block_), arena(workspace), second(block) {
    depthwise = depthwise_of(block);
    depthwise.y = middle_memory(block.d, depthwise.y, arena);
    scale = block.scale ? block.scale : take_channels(arena, depthwise.y);
    shift = block.shift ? block.shift : take_channels(arena, depthwise.y);
    if (block.training) depthwise.statistics = statistics_of(block, scale, shift);
    depthwise.statistics.is_before_pointwise = !second.slides;
    second.set([&](auto& convolution) {
      convolution.x = depthwise.y;
      convolution.weight = block.pw_weight;
      convolution.bias = block.pw_bias;
      convolution.prologue = {scale, shift, block.activation};
      convolution.y = block.y;
      convolution.epilogue = block.epilogue;
      convolution.allow_tf32 = block.allow_tf32;
    });
    second.pointwise.prologue_is_new = block.training;
  }

  struct Plans {
    Plan<DepthwiseArguments> depthwise;
    Second::Plans second;

    std::size_t workspace_bytes() const { return most_workspace_bytes(depthwise, second); }
  };

  Plans plan(int threads) const {
    return {plan_depthwise_conv2d(depthwise, threads),
            second.plan(plan_pointwise_conv2d, plan_sliding_channel_conv2d, threads)};
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    if (!block.training && !block.scale) {
      batch_norm_finalize(affine_of(normalisation_of(block), scale, shift), rest);
    }
    plans.depthwise.run(depthwise, rest);
    second.run(plans.second, rest);
  }
};

struct ComposedBackward {
  using Second = SecondConvolution<PointwiseBackwardArguments, SlidingChannelBackwardArguments>;

  const DscBlockBackwardArguments& block;
  Arena arena;
  ChannelVector own_scale, own_shift;  ///< where forward did not keep them
  MiddleGradient middle;
  DepthwiseArguments recomputed;  ///< what d comes from where forward did not keep it
  Second second;
  DepthwiseBackwardArguments depthwise;

  ComposedBackward(const DscBlockBackwardArguments& block_, void* workspace)
      : block(block_), arena(workspace), second(block) {
    recomputed = depthwise_of(block);
    if (!block.d) recomputed.y = middle_memory({}, recomputed.y, arena);
    const ConstTensorView d = block.d ? block.d : ConstTensorView(recomputed.y);
    const TensorView grad_bn = middle_memory(block.grad_bn, recomputed.y, arena);
    for (ChannelVector* vector : {&own_scale, &own_shift, &middle.sum_grad, &middle.sum_grad_times_centered,
                                  &middle.grad_scale, &middle.output_scale, &middle.offset}) {
      *vector = take_channels(arena, d);
    }
    const Prologue normalised = block.scale ? Prologue{block.scale, block.shift, block.activation}
                                            : Prologue{own_scale, own_shift, block.activation};
    second.set([&](auto& convolution) {
      convolution.x = d;
      convolution.weight = block.pw_weight;
      convolution.grad_y = block.grad_y;
      convolution.prologue = normalised;
      convolution.sums = sums_of(block, middle);
      convolution.grad_x = grad_bn;
      convolution.grad_weight = block.grad_pw_weight;
      convolution.grad_bias = block.grad_pw_bias;
      convolution.allow_tf32 = block.allow_tf32;
    });
    depthwise = depthwise_backward_of(block);
    depthwise.grad_y = grad_bn;
    depthwise.gradient_prologue = gradient_prologue_of(sums_of(block, middle).normaliser, grad_bn, d);
  }

  struct Plans {
    Plan<DepthwiseArguments> recomputed;  ///< likewise the last: empty where there is nothing to do
    Second::Plans second;
    Plan<DepthwiseBackwardArguments> depthwise;

    std::size_t workspace_bytes() const { return most_workspace_bytes(recomputed, second, depthwise); }
  };

  Plans plan(int threads) const {
    Plans plans;
    if (!block.d) {
      const DscBlockArguments forward = forward_of(block);
      plans.recomputed = plan_recomputed(recomputed, ComposedForward(forward, nullptr).depthwise, threads);
    }
    plans.second = second.plan(plan_pointwise_conv2d_backward, plan_sliding_channel_conv2d_backward, threads);
    if (wants_depthwise_gradients(block)) plans.depthwise = plan_depthwise_conv2d_backward(depthwise, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    if (!block.d) plans.recomputed.run(recomputed, rest);
    if (!block.scale) batch_norm_finalize(affine_of(normalisation_of(block), own_scale, own_shift), rest);
    second.run(plans.second, rest);
    if (wants_depthwise_gradients(block)) plans.depthwise.run(depthwise, rest);
  }
};

/// On a CPU another kernel keeps what is not stored in the cache.
template <class Block>
bool keeps_in_cache(const Block& block) {
  return block.x.device == Device::cpu && needs_dense_pointwise(block).empty();
}

}  // namespace

Implementation<DscBlockArguments> dsc_block_composed() {
  return composed<ComposedForward, DscBlockArguments>([](const DscBlockArguments&) { return std::string(); });
}

bool suits_dsc_block_composed(const DscBlockArguments& block) {
  return block.d || block.epilogue || !keeps_in_cache(block);
}

Implementation<DscBlockBackwardArguments> dsc_block_backward_composed() {
  return composed<ComposedBackward, DscBlockBackwardArguments>(
      [](const DscBlockBackwardArguments&) { return std::string(); });
}

bool suits_dsc_block_backward_composed(const DscBlockBackwardArguments& block) {
  return (block.d && block.grad_bn) || !keeps_in_cache(block);
}

}  // namespace fusedsc
