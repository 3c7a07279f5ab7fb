/// The tensors of a fused block's case.
#pragma once

#include "fusedsc/fused/dsc_block.h"
#include "ops/dsc_block_cases.h"
#include "reference/dsc_block.h"

namespace fusedsc::reference {

/// What goes into a block: the same values for forward, backward and the reference.
struct DscBlockInputs {
  Tensor x, dw_weight, pw_weight;
  Channels dw_bias, pw_bias, bn_weight, bn_bias;
  Channels running_mean, running_invstd;  ///< for eval mode

  explicit DscBlockInputs(const DscBlockCase& block)
      : x(block.dtype, block.depthwise.x, block.memories.x),
        dw_weight(block.dtype, block.depthwise.weight_sizes(), block.memories.weight),
        pw_weight(block.dtype, block.pw_weight_sizes(), block.memories.weight) {
    Random random(7);
    const DataType sum_type = accumulation_type(block.dtype);
    const std::int64_t middle = dw_weight.sizes()[0];
    x.fill(random, -1, 2);
    dw_weight.fill(random, -1, 1);
    pw_weight.fill(random, -1, 1);
    if (block.biases) {
      dw_bias = Channels(block.dtype, middle).fill(random, -1, 1);
      pw_bias = Channels(block.dtype, block.outputs).fill(random, -1, 1);
    }
    if (block.affine) {
      bn_weight = Channels(sum_type, middle).fill(random, -1, 3);
      bn_bias = Channels(sum_type, middle).fill(random, -1, 4);
    }
    running_mean = Channels(sum_type, middle).fill(random, -1, 1);
    running_invstd = Channels(sum_type, middle).fill(random, 0.5, 2);
  }

  DscBlock reference(const DscBlockCase& block) const {
    return {.dtype = block.dtype,
            .window = block.depthwise.window,
            .activation = block.activation,
            .eps = DscBlockArguments().eps,
            .training = block.training,
            .x = x.values(),
            .dw_weight = dw_weight.values(),
            .pw_weight = pw_weight.values(),
            .dw_bias = dw_bias.values(),
            .pw_bias = pw_bias.values(),
            .bn_weight = bn_weight.values(),
            .bn_bias = bn_bias.values(),
            .groups = block.groups,
            .overlap = block.overlap};
  }
  Normalisation running() const { return {running_mean.values(), running_invstd.values()}; }

  /// Sets what forward's and backward's arguments both have.
  template <class Arguments>
  void set(const DscBlockCase& block, Arguments& arguments) {
    arguments.x = x;
    arguments.dw_weight = dw_weight;
    arguments.dw_bias = dw_bias;
    arguments.pw_weight = pw_weight;
    arguments.groups = block.groups;
    arguments.overlap = block.overlap;
    arguments.window = block.depthwise.window;
    arguments.bn_weight = bn_weight;
    arguments.bn_bias = bn_bias;
    arguments.activation = block.activation;
    arguments.training = block.training;
  }
};

/// A forward pass: its inputs and what it writes.
struct DscBlockForward {
  DscBlockInputs inputs;
  Tensor d, y;
  Channels mean, invstd, variance, scale, shift;

  explicit DscBlockForward(const DscBlockCase& block)
      : inputs(block),
        d(block.dtype, block.depthwise.y_sizes(), block.memories.y),
        y(block.dtype, block.y_sizes(), block.memories.y),
        mean(accumulation_type(block.dtype), block.depthwise.y_sizes()[1]),
        invstd(mean),
        variance(mean),
        scale(mean),
        shift(mean) {}

  DscBlockArguments arguments(const DscBlockCase& block) {
    DscBlockArguments arguments;
    inputs.set(block, arguments);
    arguments.pw_bias = inputs.pw_bias;
    arguments.mean = block.training ? mean : inputs.running_mean;
    arguments.invstd = block.training ? invstd : inputs.running_invstd;
    if (block.training) arguments.variance = variance;
    if (block.stores_d) arguments.d = d;
    if (block.stores_d && block.training) {
      arguments.scale = scale;
      arguments.shift = shift;
    }
    arguments.y = y;
    return arguments;
  }

  /// In eval mode: the affine map, and nothing that it follows from.
  DscBlockArguments folded(const DscBlockCase& block) {
    const Affine map = batch_norm(Precision(mean.tensor().dtype()), inputs.bn_weight.values(), inputs.bn_bias.values(),
                                  inputs.running(), Activation::identity);
    DscBlockArguments result = arguments(block);
    result.bn_weight = result.bn_bias = {};
    result.mean = mean;
    result.invstd = invstd;
    result.scale = scale.fill(map.scale);
    result.shift = shift.fill(map.shift);
    return result;
  }
};

/// A backward pass: its inputs, among them what the reference's forward pass left, and what it writes.
struct DscBlockBackward {
  DscBlockInputs inputs;
  Tensor d, grad_y, grad_bn, grad_x, grad_dw_weight, grad_pw_weight;
  Channels mean, invstd, scale, shift;
  Channels grad_dw_bias, grad_pw_bias, grad_bn_weight, grad_bn_bias;

  explicit DscBlockBackward(const DscBlockCase& block)
      : inputs(block),
        d(block.dtype, block.depthwise.y_sizes(), block.memories.y),
        grad_y(block.dtype, block.y_sizes(), block.memories.other),
        grad_bn(d),
        grad_x(block.dtype, block.depthwise.x, block.memories.y),
        grad_dw_weight(block.dtype, inputs.dw_weight.sizes(), block.memories.weight),
        grad_pw_weight(block.dtype, inputs.pw_weight.sizes(), block.memories.weight),
        mean(inputs.running_mean),
        invstd(inputs.running_invstd),
        grad_dw_bias(block.dtype, d.sizes()[1]),
        grad_pw_bias(block.dtype, block.outputs),
        grad_bn_weight(accumulation_type(block.dtype), d.sizes()[1]),
        grad_bn_bias(grad_bn_weight) {
    Random random(8);
    grad_y.fill(random, -1, 2);
    const DscBlockOutputs outputs = forward(inputs.reference(block), inputs.running(), block.rounds_d());
    d.fill(outputs.d);
    if (block.training) {
      mean.fill(outputs.statistics.mean);
      invstd.fill(outputs.statistics.invstd);
    }
    const Affine map = affine(block);
    scale = shift = mean;
    scale.fill(map.scale);
    shift.fill(map.shift);
  }

  Affine affine(const DscBlockCase& block) const {
    return batch_norm(Precision(block.dtype), inputs.bn_weight.values(), inputs.bn_bias.values(),
                      {mean.values(), invstd.values()}, block.activation);
  }

  /// All gradients that the block has.
  DscBlockBackwardArguments arguments(const DscBlockCase& block) {
    DscBlockBackwardArguments arguments;
    inputs.set(block, arguments);
    arguments.mean = mean;
    arguments.invstd = invstd;
    if (block.stores_d) arguments.d = d;
    if (block.stores_d && block.training) {
      arguments.scale = scale;
      arguments.shift = shift;
    }
    arguments.grad_y = grad_y;
    if (block.stores_grad_bn) arguments.grad_bn = grad_bn;
    arguments.grad_x = grad_x;
    arguments.grad_dw_weight = grad_dw_weight;
    arguments.grad_pw_weight = grad_pw_weight;
    if (block.biases) {
      arguments.grad_dw_bias = grad_dw_bias;
      arguments.grad_pw_bias = grad_pw_bias;
    }
    if (block.affine) {
      arguments.grad_bn_weight = grad_bn_weight;
      arguments.grad_bn_bias = grad_bn_bias;
    }
    return arguments;
  }
};

}  // namespace fusedsc::reference
