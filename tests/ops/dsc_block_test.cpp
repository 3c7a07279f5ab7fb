#include "fusedsc/fused/dsc_block.h"

#include "ops/dsc_block_tensors.h"
#include "ops/each_target.h"
#include "ops/verify.h"

namespace fusedsc::reference {
namespace {

constexpr Operator<DscBlockArguments> kForward{dsc_block, dsc_block_workspace_bytes};
constexpr Operator<DscBlockBackwardArguments> kBackward{dsc_block_backward, dsc_block_backward_workspace_bytes};

/// What depends on the batch's statistics depends on how their partial sums were added.
Output::Kind after_statistics(const DscBlockCase& block) {
  return block.training ? Output::Kind::partial_sums : Output::Kind::same_bits;
}

void verify_forward(const DscBlockCase& block) {
  DscBlockForward tensors(block);
  const DscBlockOutputs expected = forward(tensors.inputs.reference(block), tensors.inputs.running(), block.stores_d);
  std::vector<Output> outputs{{"y", tensors.y, expected.y, after_statistics(block)}};
  if (block.stores_d) outputs.emplace_back("d", tensors.d, expected.d);
  if (block.training) {
    outputs.emplace_back("mean", tensors.mean, expected.statistics.mean);
    outputs.emplace_back("invstd", tensors.invstd, expected.statistics.invstd);
    outputs.emplace_back("variance", tensors.variance, expected.statistics.variance);
  }
  verify(kForward, tensors.arguments(block), outputs);
}

void verify_backward(const DscBlockCase& block) {
  DscBlockBackward tensors(block);
  DscBlockBackwardArguments arguments = tensors.arguments(block);
  const Array d = tensors.d.values();
  const DscBlockGradients expected =
      backward(tensors.inputs.reference(block), {tensors.mean.values(), tensors.invstd.values()},
               block.stores_d ? &d : nullptr, tensors.grad_y.values(), block.stores_grad_bn);

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
  verify(kBackward, arguments, outputs);
}

class DscBlockOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, DscBlockOf, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(DscBlockOf, ForwardEdges) { for_each_case(dsc_block_edges(GetParam()), verify_forward); }
TEST_P(DscBlockOf, ForwardActivations) { for_each_case(dsc_block_activations(GetParam()), verify_forward); }
TEST_P(DscBlockOf, ForwardRandom) { for_each_case(random_dsc_blocks(GetParam()), verify_forward); }
TEST_P(DscBlockOf, BackwardEdges) { for_each_case(dsc_block_edges(GetParam()), verify_backward); }
TEST_P(DscBlockOf, BackwardActivations) { for_each_case(dsc_block_activations(GetParam()), verify_backward); }
TEST_P(DscBlockOf, BackwardRandom) { for_each_case(random_dsc_blocks(GetParam()), verify_backward); }

class DscBlockOn : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, DscBlockOn, EachTarget::all(), EachTarget::name);

TEST_P(DscBlockOn, SomeCases) {
  for (const DataType dtype : kDataTypes) {
    for_some_cases(dsc_block_edges(dtype), verify_forward);
    for_some_cases(random_dsc_blocks(dtype), verify_forward);
    for_some_cases(dsc_block_edges(dtype), verify_backward);
    for_some_cases(random_dsc_blocks(dtype), verify_backward);
  }
}

}  // namespace
}  // namespace fusedsc::reference
