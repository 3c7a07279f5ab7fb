/// How the inverted residual is verified, on the CPU or on a GPU.
#pragma once

#include "ops/inverted_residual_tensors.h"
#include "ops/verify.h"

namespace fusedsc::reference {

constexpr Operator<InvertedResidualArguments> kInvertedResidual{inverted_residual, inverted_residual_workspace_bytes};
constexpr Operator<InvertedResidualBackwardArguments> kInvertedResidualBackward{
    inverted_residual_backward, inverted_residual_backward_workspace_bytes};

/// What depends on the batch's statistics depends on how their partial sums were added.
inline Output::Kind after_statistics(const InvertedResidualCase& block) {
  return block.training ? Output::Kind::partial_sums : Output::Kind::same_bits;
}

inline void expect_statistics(BatchNormTensors& tensors, const BatchStatistics& expected, const std::string& name,
                              std::vector<Output>& outputs) {
  outputs.emplace_back(name + ".mean", tensors.mean, expected.mean);
  outputs.emplace_back(name + ".invstd", tensors.invstd, expected.invstd);
  outputs.emplace_back(name + ".variance", tensors.variance, expected.variance);
  const Affine map = tensors.affine({expected.mean, expected.invstd});
  outputs.emplace_back(name + ".scale", tensors.scale, map.scale);
  outputs.emplace_back(name + ".shift", tensors.shift, map.shift);
}

inline void verify_inverted_residual(const InvertedResidualCase& block) {
  InvertedResidualTensors tensors(block);
  const InvertedResidualOutputs expected = forward(tensors.reference(block));
  std::vector<Output> outputs;
  if (block.expands()) outputs.emplace_back("e", tensors.e, expected.e);
  outputs.emplace_back("d", tensors.d, expected.d, after_statistics(block));
  outputs.emplace_back("p", tensors.p, expected.p, after_statistics(block));
  outputs.emplace_back("y", tensors.y, expected.y, after_statistics(block));
  if (block.training) {
    if (block.expands()) expect_statistics(tensors.expand_bn, expected.expand, "expand_bn", outputs);
    expect_statistics(tensors.dw_bn, expected.dw, "dw_bn", outputs);
    expect_statistics(tensors.project_bn, expected.project, "project_bn", outputs);
  }
  verify(kInvertedResidual, tensors.arguments(block), outputs);
  if (!block.training) verify_once(kInvertedResidual, tensors.folded(tensors.arguments(block)), outputs, "folded");
}

/// In eval mode, with nothing kept: y alone.
inline void verify_inverted_residual_inference(InvertedResidualCase block) {
  block.training = false;
  InvertedResidualTensors tensors(block);
  InvertedResidualArguments arguments = tensors.arguments(block);
  arguments.e = arguments.d = arguments.p = {};
  InvertedResidual reference = tensors.reference(block);
  reference.stores_activated = true;
  const std::vector<Output> y{{"y", tensors.y, forward(reference).y}};
  verify(kInvertedResidual, arguments, y);
  verify_once(kInvertedResidual, tensors.folded(arguments), y, "folded");
}

inline void expect_gradients(BatchNormGradientTensors& tensors, const BatchNormGradients& expected,
                             const std::string& name, std::vector<Output>& outputs) {
  outputs.emplace_back(name + ".weight", tensors.weight, expected.weight);
  outputs.emplace_back(name + ".bias", tensors.bias, expected.bias);
}

inline void verify_inverted_residual_backward(const InvertedResidualCase& block) {
  InvertedResidualBackward tensors(block);
  const InvertedResidualTensors& left = tensors.forward;
  const InvertedResidualGradients expected =
      backward(left.reference(block), left.e.values(), left.d.values(), left.p.values(), tensors.grad_y.values());
  using enum Output::Kind;
  std::vector<Output> outputs;
  outputs.emplace_back("grad_d", tensors.grad_d, Array(block.d_sizes()), scratch);
  outputs.emplace_back("grad_x", tensors.grad_x, expected.x, after_statistics(block));
  outputs.emplace_back("grad_dw_weight", tensors.grad_dw_weight, expected.dw_weight, partial_sums);
  outputs.emplace_back("grad_project_weight", tensors.grad_project_weight, expected.project_weight, partial_sums);
  expect_gradients(tensors.grad_dw_bn, expected.dw, "grad_dw_bn", outputs);
  expect_gradients(tensors.grad_project_bn, expected.project, "grad_project_bn", outputs);
  if (block.expands()) {
    outputs.emplace_back("grad_e", tensors.grad_e, Array(block.e_sizes()), scratch);
    outputs.emplace_back("grad_expand_weight", tensors.grad_expand_weight, expected.expand_weight, partial_sums);
    expect_gradients(tensors.grad_expand_bn, expected.expand, "grad_expand_bn", outputs);
  }
  InvertedResidualBackwardArguments arguments = tensors.arguments(block);
  verify(kInvertedResidualBackward, arguments, outputs);
  if (!block.training) {
    InvertedResidualBackwardArguments folded = arguments;
    folded.forward = tensors.forward.folded(folded.forward, true);
    verify_once(kInvertedResidualBackward, folded, outputs, "folded");
  }
  // Frozen weights: the gradient passes through all the same.
  arguments.grad_expand_weight = arguments.grad_dw_weight = arguments.grad_project_weight = {};
  arguments.grad_expand_bn = arguments.grad_dw_bn = arguments.grad_project_bn = {};
  verify(kInvertedResidualBackward, arguments, {outputs[0], outputs[1]});
}

}  // namespace fusedsc::reference
