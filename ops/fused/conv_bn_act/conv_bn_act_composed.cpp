#include "fusedsc/fused/conv_bn_act/conv_bn_act_composed.h"

#include <algorithm>
#include <optional>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/fused/batch_norm_affine.h"
#include "fusedsc/fused/conv_patches.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

/// The order in which the weight's filters lie in memory, each as one run of elements; nothing if they do not.
std::optional<PatchOrder> order_of(const ConstTensorView& weight) {
  const std::int64_t channels = weight.sizes[1], rows = weight.sizes[2], columns = weight.sizes[3];
  const auto lies = [&](std::int64_t channel, std::int64_t row, std::int64_t column) {
    return (channels == 1 || weight.strides[1] == channel) && (rows == 1 || weight.strides[2] == row) &&
           (columns == 1 || weight.strides[3] == column);
  };
  if (lies(1, columns * channels, channels)) return PatchOrder::channels_last;
  if (lies(rows * columns, columns, 1)) return PatchOrder::channels_first;
  return std::nullopt;
}

/// A weight whose filters are runs, as that of a pointwise convolution of patches.
template <class View>
View as_matrix(View weight) {
  const std::int64_t elements = weight.sizes[1] * weight.sizes[2] * weight.sizes[3];
  weight.sizes = {weight.sizes[0], elements, 1, 1};
  weight.strides = {weight.strides[0], 1, 1, 1};
  return weight;
}

std::string why_not_composed(const ConstTensorView& weight, const ConstTensorView& grad_weight) {
  if (!order_of(weight)) return "the weight is neither contiguous nor channels_last";
  if (grad_weight && order_of(grad_weight) != order_of(weight)) return "grad_weight is not laid out like weight";
  return "";
}

/// A dense tensor in the workspace, in an order of memory like `like`'s.
TensorView take_tensor(Arena& arena, const Sizes& sizes, const ConstTensorView& like) {
  const ConstTensorView view(nullptr, like.dtype, sizes, dense_strides(sizes, layout_of(like.sizes, like.strides)),
                             like.device);
  const std::int64_t bytes = view.elements() * static_cast<std::int64_t>(size_of(like.dtype));
  return {arena.take<char>(bytes), view.dtype, view.sizes, view.strides, view.device};
}

/// What forward and backward both begin with: the patches, and what multiplies them.
struct Convolution {
  GatherPatchesArguments gather;
  PointwiseArguments pointwise;

  template <class Block>
  Convolution(const Block& block, const ConstTensorView& output, Arena& arena) {
    gather.x = block.x;
    gather.window = block.window;
    gather.order = order_of(block.weight).value_or(PatchOrder::channels_first);
    const std::int64_t elements = block.weight.sizes[1] * block.weight.sizes[2] * block.weight.sizes[3];
    gather.patches = take_tensor(arena, {output.sizes[0], elements, output.sizes[2], output.sizes[3]}, output);
    pointwise.x = gather.patches;
    pointwise.weight = as_matrix(block.weight);
    pointwise.allow_tf32 = block.allow_tf32;
  }
};

struct ComposedForward {
  const ConvBnActArguments& block;
  Arena arena;
  Convolution convolution;
  ChannelVector scale, shift;
  BatchNormApplyArguments apply;

  ComposedForward(const ConvBnActArguments& block_, void* workspace)
      : block(block_), arena(workspace), convolution(block, block.y, arena) {
    for (ChannelVector* vector : {&scale, &shift}) *vector = take_channels(arena, block.y);
    if (!block.training) {
      convolution.pointwise.epilogue = {scale, shift, block.activation, {}};
      if (block.scale) convolution.pointwise.epilogue = {block.scale, block.shift, block.activation, {}};
      convolution.pointwise.y = block.y;
      return;
    }
    convolution.pointwise.statistics = {
        // the sums of squares are left where invstd will be
        block.mean,
        block.invstd,
        {block.bn_weight, block.bn_bias, block.eps, block.invstd, block.variance, scale, shift}};
    convolution.pointwise.y = take_tensor(arena, block.y.sizes, block.y);
    apply.x = convolution.pointwise.y;
    apply.scale = scale;
    apply.shift = shift;
    apply.activation = block.activation;
    apply.out = block.y;
  }

  struct Plans {
    Plan<PointwiseArguments> pointwise;
    Plan<BatchNormApplyArguments> apply;

    std::size_t workspace_bytes() const { return most_workspace_bytes(pointwise, apply); }
  };

  Plans plan(int threads) const {
    Plans plans{plan_pointwise_conv2d(convolution.pointwise, threads), {}};
    if (block.training) plans.apply = plan_batch_norm_apply(apply, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    gather_patches(convolution.gather, rest);
    if (!block.training && !block.scale) {
      batch_norm_finalize(affine_of({block.bn_weight, block.bn_bias, block.mean, block.invstd}, scale, shift), rest);
    }
    plans.pointwise.run(convolution.pointwise, rest);
    if (block.training) plans.apply.run(apply, rest);
  }
};

struct ComposedBackward {
  const ConvBnActBackwardArguments& block;
  Arena arena;
  Convolution convolution;
  ChannelVector scale, shift, sum_grad, sum_grad_times_centered, grad_scale, output_scale, offset;
  BatchNormReduceArguments reduce;
  BatchNormGradientArguments gradient;
  PointwiseBackwardArguments pointwise;
  ScatterPatchesArguments scatter;

  ComposedBackward(const ConvBnActBackwardArguments& block_, void* workspace)
      : block(block_), arena(workspace), convolution(block, block.grad_y, arena) {
    const TensorView raw = take_tensor(arena, block.grad_y.sizes, block.grad_y);
    convolution.pointwise.y = raw;
    for (ChannelVector* vector :
         {&scale, &shift, &sum_grad, &sum_grad_times_centered, &grad_scale, &output_scale, &offset}) {
      *vector = take_channels(arena, block.grad_y);
    }
    const GradientNormaliser normaliser{block.bn_weight, block.invstd, block.training,       grad_scale,
                                        output_scale,    offset,       block.grad_bn_weight, block.grad_bn_bias};
    reduce = {raw,   block.grad_y,     scale,
              shift, block.activation, {block.mean, sum_grad, sum_grad_times_centered, normaliser}};
    gradient = {raw, block.grad_y, scale, shift, grad_scale, output_scale, offset, block.activation, raw};
    if (!block.training) {  // constants normalise: neither raw nor the sums have a part in its gradient
      gradient.grad_scale = scale;
      gradient.output_scale = gradient.offset = {};
    }

    pointwise.x = convolution.gather.patches;
    pointwise.weight = convolution.pointwise.weight;
    pointwise.allow_tf32 = block.allow_tf32;
    pointwise.grad_y = raw;
    if (block.grad_weight) pointwise.grad_weight = as_matrix(block.grad_weight);
    if (!block.grad_x) return;
    pointwise.grad_x = take_tensor(arena, convolution.gather.patches.sizes, block.grad_y);
    scatter = {pointwise.grad_x, block.window, convolution.gather.order, block.grad_x};
  }

  struct Plans {
    Plan<PointwiseArguments> convolution;
    Plan<BatchNormReduceArguments> reduce;       ///< likewise
    Plan<PointwiseBackwardArguments> pointwise;  ///< empty where there is nothing to do

    std::size_t workspace_bytes() const { return most_workspace_bytes(convolution, reduce, pointwise); }
  };

  bool wants_convolution_gradients() const { return block.grad_x || block.grad_weight; }
  bool wants_sums() const { return block.training || block.grad_bn_weight || block.grad_bn_bias; }

  Plans plan(int threads) const {
    Plans plans{plan_pointwise_conv2d(convolution.pointwise, threads), {}, {}};
    if (wants_sums()) plans.reduce = plan_batch_norm_reduce(reduce, threads);
    if (wants_convolution_gradients()) plans.pointwise = plan_pointwise_conv2d_backward(pointwise, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    gather_patches(convolution.gather, rest);
    plans.convolution.run(convolution.pointwise, rest);
    batch_norm_finalize(affine_of({block.bn_weight, block.bn_bias, block.mean, block.invstd}, scale, shift), rest);
    if (wants_sums()) plans.reduce.run(reduce, rest);
    if (!wants_convolution_gradients()) return;
    batch_norm_gradient(gradient, rest);
    plans.pointwise.run(pointwise, rest);
    if (block.grad_x) scatter_patches(scatter, rest);
  }
};

}  // namespace

Implementation<ConvBnActArguments> conv_bn_act_composed() {
  return composed<ComposedForward, ConvBnActArguments>(
      [](const ConvBnActArguments& block) { return why_not_composed(block.weight, {}); });
}

Implementation<ConvBnActBackwardArguments> conv_bn_act_backward_composed() {
  return composed<ComposedBackward, ConvBnActBackwardArguments>(
      [](const ConvBnActBackwardArguments& block) { return why_not_composed(block.weight, block.grad_weight); });
}

}  // namespace fusedsc
