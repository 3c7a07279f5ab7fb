/// The tensors of a chain's case.
#pragma once

#include <deque>

#include "fusedsc/fused/conv_chain.h"
#include "ops/conv_chain_cases.h"
#include "reference/conv_chain.h"

namespace fusedsc::reference {

struct ConvStageTensors {
  Tensor weight, raw;
  Channels bias;
  Channels bn_weight, bn_bias, mean, invstd, variance;
  Channels scale, shift;                       ///< in training
  Channels nothing, given_scale, given_shift;  ///< NaN, and what eval mode has where it does not go without

  ConvStageTensors(const ConvChainCase& chain, const ConvChainCase::Stage& stage, const Sizes& x, const Sizes& y,
                   Random& random)
      : weight(chain.dtype,
               stage.is_depthwise ? Sizes{y[1], 1, stage.window.kernel[0], stage.window.kernel[1]}
                                  : Sizes{y[1], x[1], 1, 1},
               chain.memories.weight),
        raw(chain.dtype, y, chain.memories.y) {
    weight.fill(random, -1, 1);
    if (stage.bias) bias = Channels(chain.dtype, y[1]).fill(random, -1, 1);
    if (!stage.has_batch_norm) return;
    mean = Channels(accumulation_type(chain.dtype), y[1]).fill(random, -1, 1);
    invstd = Channels(mean).fill(random, 0.5, 2);
    variance = nothing = given_scale = given_shift = Channels(accumulation_type(chain.dtype), y[1]);
    if (chain.affine) {
      bn_weight = Channels(mean).fill(random, -1, 3);
      bn_bias = Channels(mean).fill(random, -1, 4);
    }
    if (chain.training) scale = shift = Channels(mean);
  }

  BatchNormParameters batch_norm() {
    BatchNormParameters parameters;
    parameters.weight = bn_weight;
    parameters.bias = bn_bias;
    parameters.mean = mean;
    parameters.invstd = invstd;
    parameters.variance = variance;
    parameters.scale = scale;
    parameters.shift = shift;
    return parameters;
  }
  /// In eval mode, with the affine map; of what it follows from, with what backward reads, or nothing at all.
  BatchNormParameters folded(bool backward) {
    BatchNormParameters result = batch_norm();
    const Affine map = affine({mean.values(), invstd.values()});
    result.scale = given_scale.fill(map.scale);
    result.shift = given_shift.fill(map.shift);
    if (backward) return result;
    result.weight = result.bias = {};
    result.mean = result.invstd = nothing;
    return result;
  }
  Affine affine(const Normalisation& by) const {
    return reference::batch_norm(Precision(mean.tensor().dtype()), bn_weight.values(), bn_bias.values(), by,
                                 Activation::identity);
  }
  void set(const BatchStatistics& statistics) {
    mean.fill(statistics.mean);
    invstd.fill(statistics.invstd);
    const Affine map = affine({mean.values(), invstd.values()});
    scale.fill(map.scale);
    shift.fill(map.shift);
  }
};

struct ConvChainTensors {
  Tensor x, y;
  Channels branch_scale;
  std::deque<ConvStageTensors> stages;

  explicit ConvChainTensors(const ConvChainCase& chain)
      : x(chain.dtype, chain.x, chain.memories.x), y(chain.dtype, chain.raw_sizes().back(), chain.memories.y) {
    Random random(7);
    x.fill(random, -1, 2);
    if (chain.branch_scale) {
      branch_scale = Channels(accumulation_type(chain.dtype), chain.x[0]).fill(random, 0.5, 2);
      Vector scale = branch_scale.values();
      if (scale.size() > 1) scale[1] = {};  // a branch that is dropped
      branch_scale.fill(scale);
    }
    Sizes from = chain.x;
    const std::vector<Sizes> sizes = chain.raw_sizes();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      stages.emplace_back(chain, chain.stages[i], from, sizes[i], random);
      from = sizes[i];
    }
  }

  /// With raw results that are kept, those that anything reads.
  ConvChainArguments arguments(const ConvChainCase& chain) {
    ConvChainArguments arguments;
    arguments.x = x;
    arguments.input_activation = chain.input_activation;
    arguments.residual = chain.residual;
    arguments.branch_scale = branch_scale;
    arguments.training = chain.training;
    arguments.y = y;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const ConvChainCase::Stage& like = chain.stages[i];
      ConvStage& stage = arguments.stages.emplace_back();
      stage.kind = like.is_depthwise ? ConvStage::Kind::depthwise : ConvStage::Kind::pointwise;
      stage.weight = stages[i].weight;
      stage.bias = stages[i].bias;
      stage.window = like.window;
      if (like.has_batch_norm) stage.bn = stages[i].batch_norm();
      stage.activation = like.activation;
    }
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (reads_raw(arguments, i)) arguments.stages[i].raw = stages[i].raw;
    }
    return arguments;
  }

  /// The same in eval mode with the BatchNorms' affine maps.
  ConvChainArguments folded(ConvChainArguments arguments, bool backward = false) {
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (arguments.stages[i].bn) arguments.stages[i].bn = stages[i].folded(backward);
    }
    return arguments;
  }

  ConvChain reference(const ConvChainCase& chain) const {
    ConvChain reference{.dtype = chain.dtype,
                        .eps = BatchNormParameters().eps,
                        .training = chain.training,
                        .residual = chain.residual,
                        .input_activation = chain.input_activation,
                        .branch_scale = branch_scale.values(),
                        .x = x.values(),
                        .stages = {}};
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const ConvChainCase::Stage& like = chain.stages[i];
      const ConvStageTensors& own = stages[i];
      reference.stages.push_back({like.is_depthwise, like.window, own.weight.values(), own.bias.values(),
                                  like.has_batch_norm, own.bn_weight.values(), own.bn_bias.values(),
                                  Normalisation{own.mean.values(), own.invstd.values()}, like.activation});
    }
    return reference;
  }
};

/// A backward pass: what the reference's forward pass left, and what it writes.
struct ConvChainBackward {
  struct Stage {
    Tensor weight;
    Channels bias, bn_weight, bn_bias;
  };

  ConvChainTensors forward;
  Tensor grad_y, grad_x;
  std::deque<Stage> stages;

  explicit ConvChainBackward(const ConvChainCase& chain)
      : forward(chain),
        grad_y(chain.dtype, chain.raw_sizes().back(), chain.memories.other),
        grad_x(chain.dtype, chain.x, chain.memories.y) {
    Random random(8);
    grad_y.fill(random, -1, 1);
    const ConvChainOutputs outputs = reference::forward(forward.reference(chain));
    for (std::size_t i = 0; i < forward.stages.size(); ++i) {
      ConvStageTensors& own = forward.stages[i];
      own.raw.fill(outputs.raw[i]);
      if (chain.training && chain.stages[i].has_batch_norm) own.set(outputs.statistics[i]);
      stages.push_back({Tensor(chain.dtype, own.weight.sizes(), chain.memories.weight),
                        Channels(chain.dtype, own.weight.sizes()[0]), own.mean, own.mean});
    }
  }

  /// All gradients that the chain has.
  ConvChainBackwardArguments arguments(const ConvChainCase& chain) {
    ConvChainBackwardArguments arguments;
    arguments.forward = forward.arguments(chain);
    arguments.grad_y = grad_y;
    arguments.grad_x = grad_x;
    for (Stage& stage : stages) {
      arguments.stages.push_back({stage.weight, stage.bias, {stage.bn_weight, stage.bn_bias}});
    }
    return arguments;
  }
};

}  // namespace fusedsc::reference
