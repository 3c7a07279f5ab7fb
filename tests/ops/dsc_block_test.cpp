#include "fusedsc/fused/dsc_block.h"

#include "ops/dsc_block_cases.h"
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
  DscBlockInputs inputs(block);
  const DataType sum_type = accumulation_type(block.dtype);
  const std::int64_t middle = inputs.dw_weight.sizes()[0];
  Tensor d(block.dtype, block.depthwise.y_sizes(), block.memories.y), y(block.dtype, block.y_sizes(), block.memories.y);
  Channels mean(sum_type, middle), invstd(sum_type, middle), variance(sum_type, middle);

  DscBlockArguments arguments;
  inputs.set(block, arguments);
  arguments.pw_bias = inputs.pw_bias;
  arguments.mean = block.training ? mean : inputs.running_mean;
  arguments.invstd = block.training ? invstd : inputs.running_invstd;
  if (block.stores_d) arguments.d = d;
  arguments.y = y;

  const DscBlockOutputs expected = forward(inputs.reference(block), inputs.running(), block.stores_d);
  std::vector<Output> outputs{{"y", y, expected.y, after_statistics(block)}};
  if (block.stores_d) outputs.emplace_back("d", d, expected.d);
  if (block.training) {
    arguments.variance = variance;
    outputs.emplace_back("mean", mean, expected.statistics.mean);
    outputs.emplace_back("invstd", invstd, expected.statistics.invstd);
    outputs.emplace_back("variance", variance, expected.statistics.variance);
  }
  verify(kForward, arguments, outputs);
}

void verify_backward(const DscBlockCase& block) {
  Random random(8);
  DscBlockInputs inputs(block);
  const DataType sum_type = accumulation_type(block.dtype);
  const std::int64_t middle = inputs.dw_weight.sizes()[0];
  const DscBlock reference = inputs.reference(block);
  const DscBlockOutputs outputs_of_forward = forward(reference, inputs.running(), block.stores_d);
  Channels mean = inputs.running_mean, invstd = inputs.running_invstd;
  if (block.training) {
    mean.fill(outputs_of_forward.statistics.mean);
    invstd.fill(outputs_of_forward.statistics.invstd);
  }
  Tensor d(block.dtype, block.depthwise.y_sizes(), block.memories.y);
  d.fill(outputs_of_forward.d);
  Tensor grad_y(block.dtype, block.y_sizes(), block.memories.other);
  grad_y.fill(random, -1, 2);
  Tensor grad_bn(block.dtype, d.sizes(), block.memories.y), grad_x(block.dtype, block.depthwise.x, block.memories.y);
  Tensor grad_dw_weight(block.dtype, inputs.dw_weight.sizes(), block.memories.weight);
  Tensor grad_pw_weight(block.dtype, inputs.pw_weight.sizes(), block.memories.weight);
  Channels grad_dw_bias(block.dtype, middle), grad_pw_bias(block.dtype, block.outputs);
  Channels grad_bn_weight(sum_type, middle), grad_bn_bias(sum_type, middle);

  DscBlockBackwardArguments arguments;
  inputs.set(block, arguments);
  arguments.mean = mean;
  arguments.invstd = invstd;
  if (block.stores_d) arguments.d = d;
  arguments.grad_y = grad_y;

  const Array d_values = d.values();
  const DscBlockGradients expected =
      backward(reference, {mean.values(), invstd.values()}, block.stores_d ? &d_values : nullptr, grad_y.values(),
               block.stores_grad_bn);
  std::vector<Output> outputs;
  if (block.stores_grad_bn) {
    arguments.grad_bn = grad_bn;
    outputs.emplace_back("grad_bn", grad_bn, Array(grad_bn.sizes()), Output::Kind::scratch);
  }
  const auto want = [&](const char* name, auto& field, auto& gradient, const auto& expectation, auto... kind) {
    if (block.leaves_out && random() % 3 == 0) return;
    field = gradient;
    outputs.emplace_back(name, gradient, expectation, kind...);
  };
  want("grad_x", arguments.grad_x, grad_x, expected.x, after_statistics(block));
  want("grad_dw_weight", arguments.grad_dw_weight, grad_dw_weight, expected.dw_weight, Output::Kind::partial_sums);
  want("grad_pw_weight", arguments.grad_pw_weight, grad_pw_weight, expected.pw_weight, Output::Kind::partial_sums);
  if (block.biases) want("grad_dw_bias", arguments.grad_dw_bias, grad_dw_bias, expected.dw_bias);
  if (block.biases) want("grad_pw_bias", arguments.grad_pw_bias, grad_pw_bias, expected.pw_bias);
  if (block.affine) want("grad_bn_weight", arguments.grad_bn_weight, grad_bn_weight, expected.bn_weight);
  if (block.affine) want("grad_bn_bias", arguments.grad_bn_bias, grad_bn_bias, expected.bn_bias);
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

}  // namespace
}  // namespace fusedsc::reference
