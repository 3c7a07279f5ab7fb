/// How the halves of an inverted residual with squeeze-excite are verified, on the CPU or on a GPU: one after the
/// other, with a gate and a gradient of the means that are made of nothing.
#pragma once

#include <algorithm>

#include "ops/inverted_residual_tensors.h"
#include "ops/verify.h"

namespace fusedsc::reference {

inline void gated_residual(const GatedResidualArguments& arguments, const Execution& execution) {
  gated_residual_features(arguments, execution);
  gated_residual_projection(arguments, execution);
}
inline std::size_t gated_residual_workspace_bytes(const GatedResidualArguments& arguments, int threads) {
  return std::max(gated_residual_features_workspace_bytes(arguments, threads),
                  gated_residual_projection_workspace_bytes(arguments, threads));
}

inline void gated_residual_backward(const GatedResidualBackwardArguments& arguments, const Execution& execution) {
  gated_residual_projection_backward(arguments, execution);
  gated_residual_features_backward(arguments, execution);
}
inline std::size_t gated_residual_backward_workspace_bytes(const GatedResidualBackwardArguments& arguments,
                                                           int threads) {
  return std::max(gated_residual_projection_backward_workspace_bytes(arguments, threads),
                  gated_residual_features_backward_workspace_bytes(arguments, threads));
}

constexpr Operator<GatedResidualArguments> kGatedResidual{gated_residual, gated_residual_workspace_bytes};
constexpr Operator<GatedResidualBackwardArguments> kGatedResidualBackward{gated_residual_backward,
                                                                          gated_residual_backward_workspace_bytes};

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

inline void expect_gradients(BatchNormGradientTensors& tensors, const BatchNormGradients& expected,
                             const std::string& name, std::vector<Output>& outputs) {
  outputs.emplace_back(name + ".weight", tensors.weight, expected.weight);
  outputs.emplace_back(name + ".bias", tensors.bias, expected.bias);
}

/// What a gate adds to a block.
struct GateTensors {
  Tensor mean, gate, z, grad_gate, grad_mean;

  explicit GateTensors(const InvertedResidualCase& block)
      : mean(block.dtype, small(block), block.memories.y),
        gate(block.dtype, small(block), Memory::contiguous),
        z(block.dtype, block.d_sizes(), block.memories.y),
        grad_gate(block.dtype, small(block), block.memories.y),
        grad_mean(block.dtype, small(block), Memory::contiguous) {
    Random random(9);
    gate.fill(random, 0, 1);
    grad_mean.fill(random, -1, 1);
  }

  static Sizes small(const InvertedResidualCase& block) { return {block.x[0], block.middle(), 1, 1}; }

  GatedResidualArguments arguments(const InvertedResidualArguments& block) {
    return {.block = block, .mean = mean, .gate = gate, .z = z};
  }
  GatedResidualBackwardArguments gradients(const InvertedResidualBackwardArguments& block) {
    return {.block = block, .gate = gate, .z = z, .grad_gate = grad_gate, .grad_mean = grad_mean};
  }
  InvertedResidual reference(InvertedResidual block) const {
    block.gate = gate.values();
    block.grad_mean = grad_mean.values();
    block.z = z.values();
    return block;
  }
};

inline void verify_gated_residual(const InvertedResidualCase& block) {
  InvertedResidualTensors tensors(block);
  GateTensors gates(block);
  const InvertedResidualOutputs expected = forward(gates.reference(tensors.reference(block)));
  std::vector<Output> outputs;
  if (block.expands()) outputs.emplace_back("e", tensors.e, expected.e);
  outputs.emplace_back("d", tensors.d, expected.d, after_statistics(block));
  outputs.emplace_back("mean", gates.mean, expected.mean, after_statistics(block));
  outputs.emplace_back("z", gates.z, expected.z, after_statistics(block));
  outputs.emplace_back("y", tensors.y, expected.y, after_statistics(block));
  GatedResidualArguments arguments = gates.arguments(tensors.arguments(block));
  if (!block.training) {
    arguments.block.p = {};  // nobody wants it
    verify(kGatedResidual, arguments, outputs);
    verify_once(kGatedResidual, gates.arguments(tensors.folded(arguments.block)), outputs, "folded");
    arguments.block.p = tensors.p;
  }
  outputs.emplace_back("p", tensors.p, expected.p, after_statistics(block));
  if (block.training) {
    if (block.expands()) expect_statistics(tensors.expand_bn, expected.expand, "expand_bn", outputs);
    expect_statistics(tensors.dw_bn, expected.dw, "dw_bn", outputs);
    expect_statistics(tensors.project_bn, expected.project, "project_bn", outputs);
  }
  verify(kGatedResidual, arguments, outputs);
  if (block.training) return;
  verify_once(kGatedResidual, gates.arguments(tensors.folded(arguments.block)), outputs, "folded, p kept");
}

inline void verify_gated_residual_backward(const InvertedResidualCase& block) {
  InvertedResidualBackward tensors(block);
  GateTensors gates(block);
  InvertedResidualTensors& left = tensors.forward;
  const InvertedResidualOutputs from_z = forward(gates.reference(left.reference(block)));
  gates.z.fill(from_z.z);
  left.p.fill(from_z.p);
  if (block.training) left.project_bn.set(from_z.project);
  const InvertedResidualGradients expected = backward(gates.reference(left.reference(block)), left.e.values(),
                                                      left.d.values(), left.p.values(), tensors.grad_y.values());
  using enum Output::Kind;
  std::vector<Output> outputs;
  outputs.emplace_back("grad_d", tensors.grad_d, Array(block.d_sizes()), scratch);
  outputs.emplace_back("grad_gate", gates.grad_gate, expected.gate, after_statistics(block));
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
  verify(kGatedResidualBackward, gates.gradients(tensors.arguments(block)), outputs);
}

}  // namespace fusedsc::reference
