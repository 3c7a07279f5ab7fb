#include "fusedsc/fused/conv_chain/conv_chain_inference.h"

#include "fusedsc/fused/conv_chain/conv_chain_steps.h"
#include "fusedsc/fused/normalised_tensor.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

using Kind = ConvStage::Kind;

/// A depthwise convolution with BatchNorm runs together with the pointwise one behind it, as a fused block in eval
/// mode; all others by themselves.
struct Inference {
  const ConvChainArguments& chain;
  Arena arena;
  std::vector<BatchNormFinalizeArguments> affine;  ///< those that are not given
  Steps<DepthwiseArguments, PointwiseArguments, DscBlockArguments> steps;

  Inference(const ConvChainArguments& chain_, void* workspace) : chain(chain_), arena(workspace) {
    const std::vector<TensorView> unplaced = unplaced_results(chain);
    std::vector<std::size_t> ends;  // the last stage of each step
    for (std::size_t i = 0; i < unplaced.size(); i = ends.back() + 1) ends.push_back(is_block(i) ? i + 1 : i);
    std::vector<TensorView> results;
    results.reserve(ends.size());
    for (const std::size_t end : ends) results.push_back(unplaced[end]);
    results.back() = chain.y;
    give_address(results.back(), unplaced.back());
    place_by_turns(results, arena);
    for (std::size_t step = 0; step < ends.size(); ++step) {
      const std::size_t first = step == 0 ? 0 : ends[step - 1] + 1;
      add(first, ends[step], step == 0 ? chain.x : ConstTensorView(results[step - 1]), results[step]);
    }
  }

  bool is_block(std::size_t i) const {
    if (i == 0 && chain.input_activation != Activation::identity) return false;
    const ConvStage& stage = chain.stages[i];
    return stage.kind == Kind::depthwise && stage.bn && i + 1 < chain.stages.size() &&
           chain.stages[i + 1].kind == Kind::pointwise;
  }

  void add(std::size_t first, std::size_t end, const ConstTensorView& x, const TensorView& y) {
    const ConvStage& stage = chain.stages[first];
    const Epilogue epilogue = epilogue_of(end);
    if (end > first) {
      DscBlockArguments block;
      block.x = x;
      block.dw_weight = stage.weight;
      block.dw_bias = stage.bias;
      block.pw_weight = chain.stages[end].weight;
      block.pw_bias = chain.stages[end].bias;
      block.window = stage.window;
      block.bn_weight = stage.bn->weight;
      block.bn_bias = stage.bn->bias;
      block.activation = stage.activation;
      block.training = false;
      block.mean = stage.bn->mean;
      block.invstd = stage.bn->invstd;
      block.scale = stage.bn->scale;
      block.shift = stage.bn->shift;
      block.y = y;
      block.epilogue = epilogue;
      block.allow_tf32 = chain.allow_tf32;
      return steps.add(block);
    }
    add_convolution<DepthwiseArguments, PointwiseArguments>(
        stage, chain.allow_tf32,
        [&](auto& convolution) {
          convolution.x = x;
          convolution.bias = stage.bias;
          if (first == 0) convolution.prologue.activation = chain.input_activation;
          convolution.epilogue = epilogue;
          convolution.y = y;
        },
        [&](const auto& convolution) { steps.add(convolution); });
  }

  Epilogue epilogue_of(std::size_t i) {
    const ConvStage& stage = chain.stages[i];
    Epilogue epilogue;
    epilogue.activation = stage.activation;
    if (chain.residual && i + 1 == chain.stages.size()) epilogue.residual = chain.x;
    if (!stage.bn) return epilogue;
    epilogue.scale = stage.bn->scale;
    epilogue.shift = stage.bn->shift;
    if (stage.bn->scale) return epilogue;
    const ConstTensorView like(nullptr, chain.x.dtype, {1, stage.weight.sizes[0], 1, 1}, {}, chain.x.device);
    const ChannelVector scale = take_channels(arena, like), shift = take_channels(arena, like);
    affine.push_back(affine_of({stage.bn->weight, stage.bn->bias, stage.bn->mean, stage.bn->invstd}, scale, shift));
    epilogue.scale = scale;
    epilogue.shift = shift;
    return epilogue;
  }

  using Plans = decltype(steps)::Plans;
  Plans plan(int threads) const { return steps.plan(threads); }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const BatchNormFinalizeArguments& map : affine) batch_norm_finalize(map, rest);
    steps.run(plans, rest);
  }
};

}  // namespace

Implementation<ConvChainArguments> conv_chain_inference() {
  return composed<Inference, ConvChainArguments>("inference", [](const ConvChainArguments& chain) -> std::string {
    if (chain.training) return "it is for eval mode";
    if (chain.branch_scale) return "branch_scale needs a pass of its own";
    for (const ConvStage& stage : chain.stages) {
      if (stage.raw) return "raw results are to be kept";
    }
    return "";
  });
}

}  // namespace fusedsc
