/// The tensors of an inverted residual's case.
#pragma once

#include "fusedsc/fused/gated_residual.h"
#include "ops/inverted_residual_cases.h"
#include "reference/inverted_residual.h"

namespace fusedsc::reference {

/// One BatchNorm's parameters, and the vectors that forward writes in training and reads in eval mode.
struct BatchNormTensors {
  Channels weight, bias, mean, invstd, variance;
  Channels scale, shift;              ///< in training
  Channels nothing;                   ///< NaN
  Channels given_scale, given_shift;  ///< in eval mode, where it does not go without

  BatchNormTensors(const InvertedResidualCase& block, std::int64_t channels, Random& random)
      : mean(accumulation_type(block.dtype), channels),
        invstd(mean),
        variance(mean),
        nothing(mean),
        given_scale(mean),
        given_shift(mean) {
    if (block.affine) {
      weight = Channels(mean).fill(random, -1, 3);
      bias = Channels(mean).fill(random, -1, 4);
    }
    if (block.training) scale = shift = Channels(mean);
    mean.fill(random, -1, 1);
    invstd.fill(random, 0.5, 2);
  }

  BatchNormParameters parameters() {
    BatchNormParameters parameters;
    parameters.weight = weight;
    parameters.bias = bias;
    parameters.mean = mean;
    parameters.invstd = invstd;
    parameters.variance = variance;
    parameters.scale = scale;
    parameters.shift = shift;
    return parameters;
  }
  /// In eval mode, with the affine map; of what it follows from, with what backward reads, or nothing at all.
  BatchNormParameters folded(bool backward) {
    BatchNormParameters result = parameters();
    const Affine map = affine({mean.values(), invstd.values()});
    result.scale = given_scale.fill(map.scale);
    result.shift = given_shift.fill(map.shift);
    if (backward) return result;
    result.weight = result.bias = {};
    result.mean = result.invstd = nothing;
    return result;
  }
  void set(const BatchStatistics& statistics) {
    mean.fill(statistics.mean);
    invstd.fill(statistics.invstd);
    const Affine map = affine({mean.values(), invstd.values()});
    scale.fill(map.scale);
    shift.fill(map.shift);
  }
  Affine affine(const Normalisation& by) const {
    return batch_norm(Precision(mean.tensor().dtype()), weight.values(), bias.values(), by, Activation::identity);
  }
  BatchNormState state() const { return {weight.values(), bias.values(), {mean.values(), invstd.values()}}; }
};

struct InvertedResidualTensors {
  Tensor x, expand_weight, dw_weight, project_weight, e, d, p, y;
  BatchNormTensors expand_bn, dw_bn, project_bn;

  explicit InvertedResidualTensors(const InvertedResidualCase& block) : InvertedResidualTensors(block, Random(7)) {}

  InvertedResidualArguments arguments(const InvertedResidualCase& block) {
    InvertedResidualArguments arguments;
    arguments.x = x;
    if (block.expands()) {
      arguments.expand_weight = expand_weight;
      arguments.expand_bn = expand_bn.parameters();
      arguments.e = e;
    }
    arguments.dw_weight = dw_weight;
    arguments.project_weight = project_weight;
    arguments.dw_bn = dw_bn.parameters();
    arguments.project_bn = project_bn.parameters();
    arguments.window = block.window;
    arguments.activation = block.activation;
    arguments.residual = block.residual();
    arguments.training = block.training;
    arguments.d = d;
    arguments.p = p;
    arguments.y = y;
    return arguments;
  }

  /// The same in eval mode with the BatchNorms' affine maps.
  InvertedResidualArguments folded(InvertedResidualArguments arguments, bool backward = false) {
    if (arguments.expand_weight) arguments.expand_bn = expand_bn.folded(backward);
    arguments.dw_bn = dw_bn.folded(backward);
    arguments.project_bn = project_bn.folded(backward);
    return arguments;
  }

  InvertedResidual reference(const InvertedResidualCase& block) const {
    return {.dtype = block.dtype,
            .window = block.window,
            .activation = block.activation,
            .eps = BatchNormParameters().eps,
            .training = block.training,
            .residual = block.residual(),
            .expands = block.expands(),
            .x = x.values(),
            .expand_weight = expand_weight.values(),
            .dw_weight = dw_weight.values(),
            .project_weight = project_weight.values(),
            .expand = expand_bn.state(),
            .dw = dw_bn.state(),
            .project = project_bn.state()};
  }

 private:
  InvertedResidualTensors(const InvertedResidualCase& block, Random random)
      : x(block.dtype, block.x, block.memories.x),
        expand_weight(block.dtype, {block.middle(), block.x[1], 1, 1}, block.memories.weight),
        dw_weight(block.dtype, {block.middle(), 1, block.window.kernel[0], block.window.kernel[1]},
                  block.memories.weight),
        project_weight(block.dtype, {block.outputs, block.middle(), 1, 1}, block.memories.weight),
        e(block.dtype, block.e_sizes(), block.memories.y),
        d(block.dtype, block.d_sizes(), block.memories.y),
        p(block.dtype, block.y_sizes(), block.memories.y),
        y(block.dtype, block.y_sizes(), block.memories.y),
        expand_bn(block, block.middle(), random),
        dw_bn(block, block.middle(), random),
        project_bn(block, block.outputs, random) {
    x.fill(random, -1, 2);
    for (Tensor* weight : {&expand_weight, &dw_weight, &project_weight}) weight->fill(random, -1, 1);
  }
};

/// Gradients of one BatchNorm's parameters.
struct BatchNormGradientTensors {
  Channels weight, bias;

  explicit BatchNormGradientTensors(const BatchNormTensors& like) : weight(like.mean), bias(like.mean) {}
  fusedsc::BatchNormGradients gradients() { return {weight, bias}; }
};

/// A backward pass: what the reference's forward pass left, and what it writes.
struct InvertedResidualBackward {
  InvertedResidualTensors forward;
  Tensor grad_y, grad_d, grad_e, grad_x, grad_expand_weight, grad_dw_weight, grad_project_weight;
  BatchNormGradientTensors grad_expand_bn, grad_dw_bn, grad_project_bn;

  explicit InvertedResidualBackward(const InvertedResidualCase& block)
      : forward(block),
        grad_y(block.dtype, block.y_sizes(), block.memories.other),
        grad_d(block.dtype, block.d_sizes(), block.memories.y),
        grad_e(block.dtype, block.e_sizes(), block.memories.y),
        grad_x(block.dtype, block.x, block.memories.y),
        grad_expand_weight(block.dtype, forward.expand_weight.sizes(), block.memories.weight),
        grad_dw_weight(block.dtype, forward.dw_weight.sizes(), block.memories.weight),
        grad_project_weight(block.dtype, forward.project_weight.sizes(), block.memories.weight),
        grad_expand_bn(forward.expand_bn),
        grad_dw_bn(forward.dw_bn),
        grad_project_bn(forward.project_bn) {
    Random random(8);
    grad_y.fill(random, -1, 1);
    const InvertedResidualOutputs outputs = reference::forward(forward.reference(block));
    if (block.expands()) forward.e.fill(outputs.e);
    forward.d.fill(outputs.d);
    forward.p.fill(outputs.p);
    if (!block.training) return;
    if (block.expands()) forward.expand_bn.set(outputs.expand);
    forward.dw_bn.set(outputs.dw);
    forward.project_bn.set(outputs.project);
  }

  /// All gradients that the block has.
  InvertedResidualBackwardArguments arguments(const InvertedResidualCase& block) {
    InvertedResidualBackwardArguments arguments;
    arguments.forward = forward.arguments(block);
    arguments.grad_y = grad_y;
    arguments.grad_d = grad_d;
    arguments.grad_x = grad_x;
    arguments.grad_dw_weight = grad_dw_weight;
    arguments.grad_project_weight = grad_project_weight;
    arguments.grad_dw_bn = grad_dw_bn.gradients();
    arguments.grad_project_bn = grad_project_bn.gradients();
    if (!block.expands()) return arguments;
    arguments.grad_e = grad_e;
    arguments.grad_expand_weight = grad_expand_weight;
    arguments.grad_expand_bn = grad_expand_bn.gradients();
    return arguments;
  }
};

}  // namespace fusedsc::reference
