/// The fused blocks of a batch without images: statistics of nothing, and gradients that are zero.
#pragma once

#include <cmath>

#include "ops/dsc_block_verify.h"
#include "ops/gated_residual_verify.h"

namespace fusedsc::reference {

inline Vector constants(const Channels& channels, double value) {
  Vector values(static_cast<std::size_t>(channels.tensor().sizes()[1]));
  for (Bounded& each : values) each = {value, std::abs(value) * 1e-6};
  return values;
}
inline Vector zeros(const Channels& channels) { return constants(channels, 0); }

/// Those that forward leaves, instead of the reference's, which divides zero by zero.
inline void set_no_statistics(Channels& mean, Channels& invstd, double eps) {
  mean.fill(zeros(mean));
  invstd.fill(constants(invstd, 1 / std::sqrt(eps)));
}

inline void expect_no_statistics(const std::string& name, Channels& mean, Channels& invstd, Channels& variance,
                                 double eps, std::vector<Output>& outputs) {
  outputs.emplace_back(name + "mean", mean, zeros(mean));
  outputs.emplace_back(name + "invstd", invstd, constants(invstd, 1 / std::sqrt(eps)));
  outputs.emplace_back(name + "variance", variance, zeros(variance));
}

inline void verify_empty_dsc_block(DataType dtype) {
  DscBlockCase block;
  block.dtype = dtype;
  block.depthwise = {{0, 8, 5, 5}, centered(3)};
  block.outputs = 12;
  block.biases = block.affine = true;
  for (const bool stored : {true, false}) {
    block.stores_d = block.stores_grad_bn = stored;
    DscBlockForward forward(block);
    DscBlockArguments arguments = forward.arguments(block);
    arguments.y.data = arguments.d.data = nullptr;  // as memory without elements may be
    std::vector<Output> outputs;
    expect_no_statistics("", forward.mean, forward.invstd, forward.variance, arguments.eps, outputs);
    verify(kDscBlock, arguments, outputs);

    DscBlockBackward backward(block);
    set_no_statistics(backward.mean, backward.invstd, arguments.eps);
    verify(kDscBlockBackward, backward.arguments(block),
           {{"grad_dw_weight", backward.grad_dw_weight, Array(backward.grad_dw_weight.sizes())},
            {"grad_pw_weight", backward.grad_pw_weight, Array(backward.grad_pw_weight.sizes())},
            {"grad_dw_bias", backward.grad_dw_bias, zeros(backward.grad_dw_bias)},
            {"grad_pw_bias", backward.grad_pw_bias, zeros(backward.grad_pw_bias)},
            {"grad_bn_weight", backward.grad_bn_weight, zeros(backward.grad_bn_weight)},
            {"grad_bn_bias", backward.grad_bn_bias, zeros(backward.grad_bn_bias)}});
  }
}

inline void verify_empty_gated_residual(DataType dtype) {
  InvertedResidualCase block;
  block.dtype = dtype;
  block.x = {0, 8, 5, 5};
  block.window = centered(3);
  for (const std::int64_t expansion : {0, 24}) {
    block.expansion = expansion;
    block.outputs = expansion > 0 ? 8 : 12;
    InvertedResidualTensors forward(block);
    GateTensors gates(block);
    GatedResidualArguments arguments = gates.arguments(forward.arguments(block));
    for (TensorView* tensor : {&arguments.block.e, &arguments.block.d, &arguments.block.p, &arguments.block.y,
                               &arguments.mean, &arguments.z}) {
      tensor->data = nullptr;
    }
    std::vector<Output> outputs;
    const double eps = BatchNormParameters().eps;
    for (BatchNormTensors* bn : {&forward.expand_bn, &forward.dw_bn, &forward.project_bn}) {
      if (bn == &forward.expand_bn && !block.expands()) continue;
      expect_no_statistics("bn.", bn->mean, bn->invstd, bn->variance, eps, outputs);
    }
    verify(kGatedResidual, arguments, outputs);

    InvertedResidualBackward backward(block);
    for (BatchNormTensors* bn : {&backward.forward.expand_bn, &backward.forward.dw_bn, &backward.forward.project_bn}) {
      set_no_statistics(bn->mean, bn->invstd, eps);
    }
    outputs.clear();
    for (Tensor* weight : {&backward.grad_dw_weight, &backward.grad_project_weight}) {
      outputs.emplace_back("weight", *weight, Array(weight->sizes()));
    }
    for (BatchNormGradientTensors* bn : {&backward.grad_dw_bn, &backward.grad_project_bn}) {
      outputs.emplace_back("bn.weight", bn->weight, zeros(bn->weight));
      outputs.emplace_back("bn.bias", bn->bias, zeros(bn->bias));
    }
    verify(kGatedResidualBackward, gates.gradients(backward.arguments(block)), outputs);
  }
}

}  // namespace fusedsc::reference
