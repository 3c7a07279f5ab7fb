#include "ops/dsc_block_verify.h"

#include "ops/each_target.h"

namespace fusedsc::reference {
namespace {

class DscBlockOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, DscBlockOf, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(DscBlockOf, ForwardEdges) { for_each_case(dsc_block_edges(GetParam()), verify_dsc_block); }
TEST_P(DscBlockOf, ForwardActivations) { for_each_case(dsc_block_activations(GetParam()), verify_dsc_block); }
TEST_P(DscBlockOf, ForwardWindows) { for_each_case(dsc_block_windows(GetParam()), verify_dsc_block); }
TEST_P(DscBlockOf, ForwardRandom) { for_each_case(random_dsc_blocks(GetParam()), verify_dsc_block); }
TEST_P(DscBlockOf, BackwardEdges) { for_each_case(dsc_block_edges(GetParam()), verify_dsc_block_backward); }
TEST_P(DscBlockOf, BackwardActivations) { for_each_case(dsc_block_activations(GetParam()), verify_dsc_block_backward); }
TEST_P(DscBlockOf, BackwardWindows) { for_each_case(dsc_block_windows(GetParam()), verify_dsc_block_backward); }
TEST_P(DscBlockOf, BackwardRandom) { for_each_case(random_dsc_blocks(GetParam()), verify_dsc_block_backward); }
TEST_P(DscBlockOf, Frozen) {
  for_each_case(dsc_block_edges(GetParam()), verify_frozen_dsc_block);
  for_each_case(dsc_block_windows(GetParam()), verify_frozen_dsc_block);
}

/// By each kernel of the registry that can, whatever would be taken.
TEST_P(DscBlockOf, ByForce) {
  std::map<std::string, int> forward, backward;
  std::size_t number = 0;
  for_each_case(dsc_block_edges(GetParam()), [&](const DscBlockCase& block) {
    if (++number % 3 != 0) return;
    verify_dsc_block_kernels(block, "dsc_block.forward", 1, verify_dsc_block, forward);
    verify_dsc_block_kernels(block, "dsc_block.backward", 1, verify_dsc_block_backward, backward);
  });
  for (const char* kernel : {"composed", "cpu_fused"}) {
    EXPECT_GT(forward[kernel], 0) << kernel;
    EXPECT_GT(backward[kernel], 0) << kernel;
  }
}

class DscBlockOn : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, DscBlockOn, EachTarget::all(), EachTarget::name);

TEST_P(DscBlockOn, SomeCases) {
  for (const DataType dtype : kDataTypes) {
    for_some_cases(dsc_block_edges(dtype), verify_dsc_block);
    for_some_cases(random_dsc_blocks(dtype), verify_dsc_block);
    for_some_cases(dsc_block_edges(dtype), verify_dsc_block_backward);
    for_some_cases(random_dsc_blocks(dtype), verify_dsc_block_backward);
  }
}

}  // namespace
}  // namespace fusedsc::reference
