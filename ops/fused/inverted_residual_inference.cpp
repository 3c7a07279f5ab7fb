#include "fusedsc/fused/inverted_residual_inference.h"

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/fused/batch_norm_seam.h"
#include "fusedsc/fused/dsc_block.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

/// Every BatchNorm in the epilogue of its convolution: the expansion, then a fused block in eval mode.
struct Inference {
  const InvertedResidualArguments& block;
  Arena arena;
  BatchNormFinalizeArguments expand_affine, project_affine;
  PointwiseArguments expand;
  DscBlockArguments rest;

  Inference(const InvertedResidualArguments& block_, void* workspace) : block(block_), arena(workspace) {
    rest.x = block.x;
    if (block.expand_weight) {
      expand_affine = affine(block.expand_bn, block.expand_weight.sizes[0]);
      const Sizes sizes = pointwise_output_sizes(block.x.sizes, block.expand_weight.sizes, 1);
      TensorView e(nullptr, block.x.dtype, sizes, dense_strides(sizes, layout_of(block.x.sizes, block.x.strides)),
                   block.x.device);
      e.data = arena.take<char>(e.elements() * static_cast<std::int64_t>(size_of(e.dtype)));
      expand.x = block.x;
      expand.weight = block.expand_weight;
      expand.epilogue = {expand_affine.scale, expand_affine.shift, block.activation, {}};
      expand.y = e;
      expand.allow_tf32 = block.allow_tf32;
      rest.x = e;
    }
    project_affine = affine(block.project_bn, block.y.sizes[1]);
    rest.dw_weight = block.dw_weight;
    rest.pw_weight = block.project_weight;
    rest.window = block.window;
    rest.bn_weight = block.dw_bn.weight;
    rest.bn_bias = block.dw_bn.bias;
    rest.activation = block.activation;
    rest.training = false;
    rest.mean = block.dw_bn.mean;
    rest.invstd = block.dw_bn.invstd;
    rest.scale = block.dw_bn.scale;
    rest.shift = block.dw_bn.shift;
    rest.y = block.y;
    rest.epilogue.scale = project_affine.scale;
    rest.epilogue.shift = project_affine.shift;
    if (block.residual) rest.epilogue.residual = block.x;
    rest.allow_tf32 = block.allow_tf32;
  }

  /// As it is given, or in the workspace.
  BatchNormFinalizeArguments affine(const BatchNormParameters& bn, std::int64_t channels) {
    if (bn.scale) return affine_of({}, bn.scale, bn.shift);
    const ConstTensorView like(nullptr, block.x.dtype, {1, channels, 1, 1}, {}, block.x.device);
    const ChannelVector scale = take_channels(arena, like), shift = take_channels(arena, like);
    return affine_of({bn.weight, bn.bias, bn.mean, bn.invstd}, scale, shift);
  }

  struct Plans {
    Plan<PointwiseArguments> expand;  ///< empty without expansion
    Plan<DscBlockArguments> rest;

    std::size_t workspace_bytes() const { return most_workspace_bytes(expand, rest); }
  };

  Plans plan(int threads) const {
    return {block.expand_weight ? plan_pointwise_conv2d(expand, threads) : Plan<PointwiseArguments>(),
            plan_dsc_block(rest, threads)};
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution behind = rest_of(execution, arena);
    if (!block.project_bn.scale) batch_norm_finalize(project_affine, behind);
    if (block.expand_weight) {
      if (!block.expand_bn.scale) batch_norm_finalize(expand_affine, behind);
      plans.expand.run(expand, behind);
    }
    plans.rest.run(rest, behind);
  }
};

}  // namespace

Implementation<InvertedResidualArguments> inverted_residual_inference() {
  return composed<Inference, InvertedResidualArguments>("inference", [](const InvertedResidualArguments& block) {
    if (block.training) return std::string("it is for eval mode");
    return std::string(block.d ? "e, d and p are to be kept" : "");
  });
}

}  // namespace fusedsc
