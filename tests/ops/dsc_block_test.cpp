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

/// By each kernel of the registry that can, with each of its configs, whatever would be taken.
TEST_P(DscBlockOf, ByForce) {
  ForcedRuns forward, backward;
  std::size_t number = 0;
  for_each_case(dsc_block_edges(GetParam()), [&](const DscBlockCase& block) {
    if (++number % 5 != 0) return;
    verify_dsc_block_kernels(block, "dsc_block.forward", kAllConfigs, 0, verify_dsc_block, forward);
    verify_dsc_block_kernels(block, "dsc_block.backward", kAllConfigs, 0, verify_dsc_block_backward, backward);
  });
  for (const ForcedRuns& runs : {forward, backward}) {
    EXPECT_GT(runs_of(runs, "composed"), 0);
    EXPECT_GT(runs_of(runs, "cpu_fused"), 20);
    EXPECT_GT(values_of(runs, "cpu_fused", tuning::Knob::rows).size(), 4u);
  }
}

/// A case with something to choose about everything.
DscBlockCase large_block() {
  return {.dtype = DataType::float32,
          .depthwise = {{2, 144, 33, 20}, centered(3)},
          .outputs = 152,
          .memories = Memories::all(Memory::channels_last)};
}

/// It has rows, pieces, strips of columns and depth to choose: each with another value than the prior's, and few enough
/// to measure.
TEST(DscBlockConfigs, SayHowTheBlockIsCut) {
  constexpr std::size_t kMostConfigs = 16;
  const DscBlockCase block = large_block();
  const std::pair<const char*, void (*)(const DscBlockCase&)> kRoles[] = {
      {"dsc_block.forward", verify_dsc_block}, {"dsc_block.backward", verify_dsc_block_backward}};
  for (const auto& [role, verify] : kRoles) {
    ForcedRuns runs;
    verify_dsc_block_kernels(block, role, kAllConfigs, 0, verify, runs);
    runs.erase("composed");
    EXPECT_GT(runs.size(), 9u) << role;
    EXPECT_EQ(values_of(runs, "cpu_fused", tuning::Knob::splits), (std::set{1, 4, 16})) << role;
    EXPECT_LE(runs.size(), kMostConfigs) << role;
    for (const tuning::Knob knob :
         {tuning::Knob::rows, tuning::Knob::splits, tuning::Knob::ahead, tuning::Knob::depth, tuning::Knob::vectors}) {
      EXPECT_GT(values_of(runs, "cpu_fused", knob).size(), 1u) << role << ": " << static_cast<int>(knob);
    }
  }
}

/// The plan, the trace and explain say the same; without force the prior's config runs.
TEST(DscBlockConfigs, ExplainSaysWhatRuns) {
  DscBlockForward tensors(large_block());
  const DscBlockArguments arguments = tensors.arguments(large_block());
  const std::string choice =
      expect_explained("dsc_block.forward", explain_dsc_block(arguments), [&] { run(kDscBlock, arguments); });
  EXPECT_EQ(choice.substr(0, 15), "cpu_fused/rows=") << choice;
}

TEST(DscBlockConfigs, ForceSaysWhatItCannot) {
  DscBlockForward tensors(large_block());
  const DscBlockArguments arguments = tensors.arguments(large_block());
  const auto said = [&](const std::string& choice) {
    return what_is_said("dsc_block.forward", choice, [&] { run(kDscBlock, arguments); });
  };
  for (const char* choice : {"cpu_fused/rows=3", "cpu_fused/rows=0", "cpu_fused/stages=2",
                             "cpu_fused/rows=1000 splits=16 depth=96 vectors=4"}) {
    EXPECT_NE(said(choice).find("is none of its configs for this problem: rows="), std::string::npos) << said(choice);
  }
  EXPECT_EQ(said("composed/rows=3"), "composed: there is nothing to choose about it, but its config is rows=3");
  verify_dsc_block(large_block());
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
