#include "fusedsc/fused/conv_chain/conv_chain_composed.h"

#include <map>

#include "fusedsc/fused/conv_chain/conv_chain_steps.h"
#include "fusedsc/fused/normalised_tensor.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

using Kind = ConvStage::Kind;

/// What a convolution does to what it reads; `normalised` has nothing where there is no BatchNorm.
template <class Tensor>
Prologue prologue_of(const ConvChainArguments& chain, const std::vector<std::optional<Tensor>>& normalised,
                     std::size_t stage) {
  if (stage == 0) return {{}, {}, chain.input_activation};
  const Activation activation = chain.stages[stage - 1].activation;
  return normalised[stage - 1] ? normalised[stage - 1]->prologue(activation) : Prologue{{}, {}, activation};
}

/// Where nobody keeps a raw result it lies in the workspace, until the next convolution has read it.
struct ComposedForward {
  const ConvChainArguments& chain;
  Arena arena;
  std::vector<TensorView> raw;
  std::vector<std::optional<NormalisedTensor>> normalised;
  Steps<DepthwiseArguments, PointwiseArguments, BatchNormApplyArguments> steps;

  ComposedForward(const ConvChainArguments& chain_, void* workspace)
      : chain(chain_), arena(workspace), raw(unplaced_results(chain)) {
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (chain.stages[i].raw) raw[i] = chain.stages[i].raw;
    }
    if (!ends_in_pass(chain)) raw.back() = chain.y;
    place_by_turns(raw, arena);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      auto& tensor = normalised.emplace_back();
      if (chain.stages[i].bn) tensor.emplace(raw[i], *chain.stages[i].bn, arena);
    }
    for (std::size_t i = 0; i < raw.size(); ++i) {
      add_convolution<DepthwiseArguments, PointwiseArguments>(
          chain.stages[i], chain.allow_tf32, [&](auto& convolution) { set(convolution, i); },
          [&](const auto& convolution) { add(convolution, i); });
    }
    if (ends_in_pass(chain)) steps.add(last_pass());
  }

  template <class Convolution>
  void set(Convolution& convolution, std::size_t i) const {
    const bool is_last = i + 1 == raw.size();
    convolution.x = i == 0 ? chain.x : ConstTensorView(raw[i - 1]);
    convolution.bias = chain.stages[i].bias;
    convolution.prologue = prologue_of(chain, normalised, i);
    convolution.y = raw[i];
    if (is_last && !ends_in_pass(chain) && chain.residual) convolution.epilogue.residual = chain.x;
  }

  template <class Convolution>
  void add(Convolution convolution, std::size_t i) {
    const Convolution alone = convolution;
    if (chain.training || chain.repeats_training) train(convolution, i);
    chain.repeats_training ? steps.add_recomputed(alone, convolution) : steps.add(convolution);
  }

  /// What it does in training besides.
  template <class Convolution>
  void train(Convolution& convolution, std::size_t i) const {
    const bool is_last = i + 1 == raw.size();
    if (normalised[i]) {
      convolution.statistics =
          chain.merge != nullptr ? normalised[i]->statistics_of_part() : normalised[i]->statistics();
      convolution.statistics.is_before_pointwise = !is_last && makes_prologue_of_pointwise(i);
    }
    if constexpr (std::is_same_v<Convolution, PointwiseArguments>) {
      convolution.prologue_is_new = i > 0 && makes_prologue_of_pointwise(i - 1);
    }
  }

  /// Whether merging the statistics of a depthwise result is all that comes between it and a pointwise convolution.
  bool makes_prologue_of_pointwise(std::size_t i) const {
    return chain.merge == nullptr && normalised[i] && chain.stages[i].kind == Kind::depthwise &&
           chain.stages[i + 1].kind == Kind::pointwise;
  }

  BatchNormApplyArguments last_pass() const {
    BatchNormApplyArguments apply;
    apply.x = raw.back();
    if (normalised.back()) {
      apply.scale = normalised.back()->scale;
      apply.shift = normalised.back()->shift;
    }
    apply.activation = chain.stages.back().activation;
    apply.image_scale = chain.branch_scale;
    if (chain.residual) apply.residual = chain.x;
    apply.out = chain.y;
    return apply;
  }

  using Plans = decltype(steps)::Plans;
  Plans plan(int threads) const { return steps.plan(threads); }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const auto& tensor : normalised) {
      if (tensor && !chain.training) tensor->finish_affine(rest);
    }
    steps.run(plans, rest, [&](std::size_t step) {  // a convolution each, but for the last pass
      const bool merges = chain.training && chain.merge != nullptr && step < raw.size() && normalised[step];
      if (merges) chain.merge->statistics(step, normalised[step]->written());
    });
  }
};

/// From the result's gradient to x's: each step leaves the next one's gradient at the output of a BatchNorm, and the
/// two sums with which that BatchNorm's backward happens on load. Steps that nothing asks for are left out.
struct ComposedBackward {
  const ConvChainBackwardArguments& wanted;
  const ConvChainArguments& chain;
  Arena arena;
  std::size_t count;
  std::vector<TensorView> results;  ///< without memory
  std::vector<std::optional<NormalisedGradient>> normalised;
  /// Whether the gradient at a stage's result is wanted by what comes before its BatchNorm, or by that, too.
  std::vector<bool> wants_raw, wants_result;
  std::map<std::size_t, std::size_t> sums_of_step;  ///< the stage whose BatchNorm's sums a step leaves
  std::vector<TensorView> gradients;  ///< at each stage's result; of the last one only where a pass writes it
  Steps<DepthwiseBackwardArguments, PointwiseBackwardArguments, BatchNormReduceArguments, BatchNormApplyArguments>
      steps;

  ComposedBackward(const ConvChainBackwardArguments& wanted_, void* workspace)
      : wanted(wanted_),
        chain(wanted.forward),
        arena(workspace),
        count(chain.stages.size()),
        results(unplaced_results(chain)),
        wants_raw(count),
        wants_result(count) {
    for (std::size_t i = 0; i < count; ++i) {
      const ConvStageGradients& own = wanted.stages[i];
      wants_raw[i] = own.weight || own.bias || (i == 0 ? static_cast<bool>(wanted.grad_x) : wants_result[i - 1]);
      wants_result[i] = wants_raw[i] || own.bn.weight || own.bn.bias;
    }
    for (std::size_t i = 0; i < count; ++i) {
      auto& tensor = normalised.emplace_back();
      const bool is_read = i + 1 < count ? wants_raw[i + 1] : wants_result[i];
      if (!is_read || !chain.stages[i].bn) continue;
      tensor.emplace(raw(i), *chain.stages[i].bn, wanted.stages[i].bn, chain.training, arena);
    }
    gradients = results;
    if (!writes_last_gradient()) gradients.pop_back();
    place_by_turns(gradients, arena);
    if (wants_result.back()) add_last_pass();
    for (std::size_t i = count; i-- > 0;) {
      if (!wants_raw[i]) break;
      if (i > 0 && wants_result[i - 1] && normalised[i - 1]) sums_of_step[steps.size()] = i - 1;
      add_convolution<DepthwiseBackwardArguments, PointwiseBackwardArguments>(
          chain.stages[i], chain.allow_tf32, [&](auto& convolution) { set(convolution, i); },
          [&](const auto& convolution) { steps.add(convolution); });
    }
  }

  /// Operators tell what is given by its address; of an empty batch there need not be one.
  ConstTensorView raw(std::size_t stage) const {
    TensorView view = chain.stages[stage].raw;
    give_address(view, results[stage]);
    return view;
  }

  bool writes_last_gradient() const {
    return chain.branch_scale || chain.stages.back().activation != Activation::identity;
  }

  void add_last_pass() {
    const ConvStage& last = chain.stages.back();
    if (!last.bn && !writes_last_gradient()) return;
    if (!reads_raw(chain, count - 1)) {  // the images' scales alone
      BatchNormApplyArguments apply;
      apply.x = wanted.grad_y;
      apply.image_scale = chain.branch_scale;
      apply.out = gradients.back();
      return steps.add(apply);
    }
    BatchNormReduceArguments reduce;
    reduce.x = raw(count - 1);
    reduce.grad_y = wanted.grad_y;
    reduce.activation = last.activation;
    reduce.image_scale = chain.branch_scale;
    if (normalised.back()) {
      reduce.scale = normalised.back()->scale;
      reduce.shift = normalised.back()->shift;
      reduce.sums = normalised.back()->sums();
      sums_of_step[steps.size()] = count - 1;
    }
    if (writes_last_gradient()) reduce.grad = gradients.back();
    steps.add(reduce);
  }

  template <class Convolution>
  void set(Convolution& convolution, std::size_t i) const {
    const bool is_last = i + 1 == count;
    convolution.x = i == 0 ? chain.x : raw(i - 1);
    convolution.prologue = prologue_of(chain, normalised, i);
    convolution.grad_y = is_last && !writes_last_gradient() ? wanted.grad_y : ConstTensorView(gradients[i]);
    if (normalised[i]) {
      convolution.gradient_prologue = normalised[i]->gradient_prologue(convolution.grad_y);
      if constexpr (std::is_same_v<Convolution, PointwiseBackwardArguments>) {
        convolution.gradient_prologue.output_is_of_x = chain.training && !convolution.prologue && !chain.stages[i].bias;
      }
    }
    convolution.grad_weight = wanted.stages[i].weight;
    convolution.grad_bias = wanted.stages[i].bias;
    if (i == 0) {
      convolution.grad_x = wanted.grad_x;
      if (chain.residual && wanted.grad_x) convolution.grad_add = wanted.grad_y;
    } else if (wants_result[i - 1]) {
      convolution.grad_x = gradients[i - 1];
      if (normalised[i - 1]) convolution.sums = normalised[i - 1]->sums();
    }
  }

  using Plans = decltype(steps)::Plans;
  Plans plan(int threads) const { return steps.plan(threads); }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const auto& tensor : normalised) {
      if (tensor) tensor->finish_affine(rest);
    }
    steps.run(plans, rest, [&](std::size_t step) {
      if (!chain.training || chain.merge == nullptr) return;
      const auto found = sums_of_step.find(step);
      if (found != sums_of_step.end()) chain.merge->gradient(found->second, normalised[found->second]->sums());
    });
  }
};

}  // namespace

Implementation<ConvChainArguments> conv_chain_composed() {
  return composed<ComposedForward, ConvChainArguments>([](const ConvChainArguments&) { return std::string(); });
}

Implementation<ConvChainBackwardArguments> conv_chain_backward_composed() {
  return composed<ComposedBackward, ConvChainBackwardArguments>(
      [](const ConvChainBackwardArguments&) { return std::string(); });
}

}  // namespace fusedsc
