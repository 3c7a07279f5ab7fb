/// How the fused block is verified, on the CPU or on a GPU.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "ops/dsc_block_tensors.h"
#include "ops/forced_choices.h"
#include "ops/verify.h"

namespace fusedsc::reference {

constexpr Operator<DscBlockArguments> kDscBlock{dsc_block, dsc_block_workspace_bytes};
constexpr Operator<DscBlockBackwardArguments> kDscBlockBackward{dsc_block_backward, dsc_block_backward_workspace_bytes};

/// What depends on the batch's statistics depends on how their partial sums were added.
inline Output::Kind after_statistics(const DscBlockCase& block) {
  return block.training ? Output::Kind::partial_sums : Output::Kind::same_bits;
}

inline void verify_dsc_block(const DscBlockCase& block) {
  DscBlockForward tensors(block);
  const DscBlockOutputs expected = forward(tensors.inputs.reference(block), tensors.inputs.running(), block.rounds_d());
  std::vector<Output> outputs{{"y", tensors.y, expected.y, after_statistics(block)}};
  if (block.stores_d) outputs.emplace_back("d", tensors.d, expected.d);
  if (block.training) {
    outputs.emplace_back("mean", tensors.mean, expected.statistics.mean);
    outputs.emplace_back("invstd", tensors.invstd, expected.statistics.invstd);
    outputs.emplace_back("variance", tensors.variance, expected.statistics.variance);
  }
  verify(kDscBlock, tensors.arguments(block), outputs);
  if (!block.training) verify_once(kDscBlock, tensors.folded(block), outputs, "folded");
}

inline void verify_dsc_block_backward(const DscBlockCase& block) {
  DscBlockBackward tensors(block);
  DscBlockBackwardArguments arguments = tensors.arguments(block);
  const Array d = tensors.d.values();
  const DscBlockGradients expected =
      backward(tensors.inputs.reference(block), {tensors.mean.values(), tensors.invstd.values()},
               block.stores_d ? &d : nullptr, block.rounds_d(), tensors.grad_y.values(), block.rounds_grad_bn());

  Random random(9 + static_cast<std::uint64_t>(block.outputs));
  std::vector<Output> outputs;
  const auto want = [&](const char* name, auto& field, auto& gradient, const auto& expectation, auto... kind) {
    if (block.leaves_out && random() % 3 == 0) field = {};
    if (field) outputs.emplace_back(name, gradient, expectation, kind...);
  };
  using enum Output::Kind;
  want("grad_x", arguments.grad_x, tensors.grad_x, expected.x, after_statistics(block));
  want("grad_dw_weight", arguments.grad_dw_weight, tensors.grad_dw_weight, expected.dw_weight, partial_sums);
  want("grad_pw_weight", arguments.grad_pw_weight, tensors.grad_pw_weight, expected.pw_weight, partial_sums);
  want("grad_dw_bias", arguments.grad_dw_bias, tensors.grad_dw_bias, expected.dw_bias);
  want("grad_pw_bias", arguments.grad_pw_bias, tensors.grad_pw_bias, expected.pw_bias);
  want("grad_bn_weight", arguments.grad_bn_weight, tensors.grad_bn_weight, expected.bn_weight);
  want("grad_bn_bias", arguments.grad_bn_bias, tensors.grad_bn_bias, expected.bn_bias);
  if (block.stores_grad_bn) outputs.emplace_back("grad_bn", tensors.grad_bn, Array(d.sizes), scratch);
  verify(kDscBlockBackward, arguments, outputs);
  if (block.training) return;
  arguments.scale = tensors.scale;
  arguments.shift = tensors.shift;
  verify_once(kDscBlockBackward, arguments, outputs, "folded");
}

/// In eval mode constants normalise: what is no number in one image does not reach the gradients of the others.
inline void verify_frozen_dsc_block(const DscBlockCase& block) {
  if (block.training || block.depthwise.x[0] < 2) return;
  DscBlockBackward tensors(block);
  const Array d = tensors.d.values();
  const Array expected =
      backward(tensors.inputs.reference(block), tensors.inputs.running(), block.stores_d ? &d : nullptr,
               block.rounds_d(), tensors.grad_y.values(), block.rounds_grad_bn())
          .x;
  const auto spoil = [](Tensor& tensor) {
    Array values = tensor.values();
    values.at(1, 0, 0, 0).value = NAN;
    tensor.fill(values);
  };
  spoil(tensors.inputs.x);
  spoil(tensors.d);
  spoil(tensors.grad_y);
  run(kDscBlockBackward, tensors.arguments(block));
  const Array grad_x = tensors.grad_x.values();
  for_each_index(grad_x.sizes, [&](auto n, auto c, auto h, auto w) {
    if (n == 1 || testing::Test::HasFatalFailure()) return;
    const Bounded bound = stored(Precision(block.dtype), expected.at(n, c, h, w));
    ASSERT_LE(std::abs(grad_x.at(n, c, h, w).value - bound.value), bound.error)
        << "[" << n << ", " << c << ", " << h << ", " << w << "]";
  });
}

/// By some kernels and configs of a role, by force. In 16 bits only with what rounds where the reference does:
/// "composed" stores what lies between the convolutions, and so rounds it.
template <class Verify>
void verify_dsc_block_kernels(const DscBlockCase& block, const char* role, std::size_t of_each, std::size_t turn,
                              const Verify& verify, ForcedRuns& runs) {
  const auto skips = [&](const std::string& choice) {
    if (size_of(block.dtype) != 2) return false;
    if (kernel_of(choice) == "composed") return !(block.rounds_d() && block.rounds_grad_bn());
    return kernel_of(choice) == "cpu_fused" && (block.rounds_d() || block.rounds_grad_bn());
  };
  verify_by_some(
      role, of_each, turn, [&] { verify(block); }, runs, skips);
}

}  // namespace fusedsc::reference
