/// The fused blocks on a GPU: the chains of its operators, in every mode.
#include <algorithm>
#include <set>

#include "gpu/gpu_under_test.h"
#include "ops/conv_chain_verify.h"
#include "ops/dsc_block_verify.h"
#include "ops/empty_blocks.h"
#include "ops/gated_residual_verify.h"

namespace fusedsc::reference {
namespace {

class FusedBlocksGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, FusedBlocksGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(FusedBlocksGpu, DscBlockEdges) { for_each_case(dsc_block_edges(GetParam().dtype), verify_dsc_block); }
TEST_P(FusedBlocksGpu, DscBlockActivations) {
  for_each_case(dsc_block_activations(GetParam().dtype), verify_dsc_block);
}
TEST_P(FusedBlocksGpu, DscBlockWindows) { for_each_case(dsc_block_windows(GetParam().dtype), verify_dsc_block); }
TEST_P(FusedBlocksGpu, DscBlockBackwardWindows) {
  for_each_case(dsc_block_windows(GetParam().dtype), verify_dsc_block_backward);
}
TEST_P(FusedBlocksGpu, DscBlockRandom) { for_each_case(random_dsc_blocks(GetParam().dtype), verify_dsc_block); }

/// Blocks for which there is one kernel on Hopper GPUs, each of those once.
std::vector<DscBlockCase> inference_cases(const GpuTarget& target) {
  struct Shape {
    DepthwiseGeometry depthwise;
    std::int64_t outputs;
    Activation activation;
  };
  const Shape kShapes[] = {
      {{{8, 32, 28, 28}, centered(3)}, 16, Activation::relu6},
      {{{3, 24, 40, 70}, centered(3)}, 24, Activation::silu},
      {{{1, 104, 44, 45}, centered(3)}, 32, Activation::relu6},
      {{{2, 40, 113, 112}, centered(3, 2)}, 24, Activation::hardswish},
      {{{5, 8, 72, 80}, {{3, 3}, {1, 1}, {1, 1}, {0, 2, 2, 0}}}, 8, Activation::relu},
      {{{8, 72, 14, 14}, centered(3)}, 64, Activation::identity},
      {{{7, 136, 14, 13}, centered(3)}, 88, Activation::relu6},
      {{{8, 144, 29, 30}, centered(3, 2)}, 32, Activation::hardswish},
      {{{4, 72, 28, 28}, centered(3, 2)}, 64, Activation::relu6},
      {{{11, 136, 14, 15}, {{3, 3}, {2, 2}, {1, 1}, {2, 0, 0, 1}}}, 152, Activation::silu},
  };
  std::vector<DscBlockCase> cases;
  if (target.wave_size != 32 || size_of(target.dtype) != 2) return cases;
  for (const Shape& shape : kShapes) {
    const bool has_all = cases.size() % 2 == 0;
    cases.push_back({.dtype = target.dtype,
                     .depthwise = shape.depthwise,
                     .outputs = shape.outputs,
                     .activation = shape.activation,
                     .training = false,
                     .biases = has_all,
                     .affine = has_all,
                     .memories = Memories::all(Memory::channels_last)});
  }
  return cases;
}

TEST_P(FusedBlocksGpu, DscBlockInference) { for_each_case(inference_cases(GetParam()), verify_dsc_block); }

/// By each kernel of the registry that can, with some of its configs.
TEST_P(FusedBlocksGpu, DscBlockInferenceByForce) {
  const std::vector<DscBlockCase> cases = inference_cases(GetParam());
  ForcedRuns runs;
  std::size_t turn = 0;
  for_each_case(cases, [&](const DscBlockCase& block) {
    verify_dsc_block_kernels(block, "dsc_block.forward", 2, turn++, verify_dsc_block, runs);
  });
  if (cases.empty()) return;
  EXPECT_GE(runs_of(runs, "composed"), static_cast<int>(cases.size()));
  if (runs.size() == 1) GTEST_SKIP() << "this GPU is no Hopper";
  EXPECT_GE(runs_of(runs, "gpu_hopper"), 10);
  EXPECT_GE(runs_of(runs, "gpu_hopper_narrow"), 4);
}

/// Every config that is listed can be planned, and nothing else: a number more or less in any of its words is said to
/// be none.
TEST_P(FusedBlocksGpu, DscBlockConfigsAreThoseListed) {
  for (const DscBlockCase& block : inference_cases(GetParam())) {
    DscBlockForward tensors(block);
    const DscBlockArguments arguments = tensors.arguments(block);
    const auto plan = [&] { plan_dsc_block(arguments, 1); };
    const std::vector<std::string> all = some_choices_of("dsc_block.forward", kAllConfigs, 0, plan);
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
    std::size_t number = 0;
    for (const std::string& choice : all) {
      if (++number % 7 != 0 || !choice.starts_with("gpu_hopper")) continue;
      EXPECT_EQ(what_is_said("dsc_block.forward", choice, plan), "nothing") << choice;
      const tuning::ChoiceWords words = tuning::words_of(choice);
      for (const tuning::Knob knob : {tuning::Knob::channels, tuning::Knob::rows, tuning::Knob::columns,
                                      tuning::Knob::groups, tuning::Knob::stages}) {
        tuning::Config other = words.parsed_config();
        ++other[knob];
        const std::string wrong = std::string(words.kernel) + '/' + tuning::printed(other);
        if (std::find(all.begin(), all.end(), wrong) != all.end()) continue;
        EXPECT_NE(what_is_said("dsc_block.forward", wrong, plan).find("there is no kernel with "), std::string::npos)
            << wrong;
      }
    }
  }
}

/// No tap, and no channel's scale, so small that it makes anything but the activation's bound of a large number.
void enlarge(DscBlockInputs& inputs) {
  constexpr double kLeast = 0.25;
  Array weight = inputs.dw_weight.values();
  for (Bounded& w : weight.elements) w.value = std::copysign(std::max(std::abs(w.value), kLeast), w.value);
  inputs.dw_weight.fill(weight);
  Vector scale = inputs.bn_weight.values();
  for (Bounded& s : scale) s.value = std::copysign(std::max(std::abs(s.value), kLeast), s.value);
  inputs.bn_weight.fill(scale);
}

/// An infinity reaches the windows that see it, as what its own channel makes of it.
TEST_P(FusedBlocksGpu, DscBlockInferenceOfInfinities) {
  for (const DscBlockCase& block : inference_cases(GetParam())) {
    if (block.activation != Activation::relu6) continue;
    SCOPED_TRACE(testing::PrintToString(block));
    const auto fill = [](DscBlockInputs& inputs, double wild) {
      enlarge(inputs);
      Array x = inputs.x.values();
      for (std::size_t i = 0; i < x.elements.size(); i += 997) x.elements[i].value = i % 2 == 0 ? wild : -wild;
      inputs.x.fill(x);
    };
    DscBlockForward tensors(block);
    fill(tensors.inputs, std::numeric_limits<double>::infinity());
    run(kDscBlock, tensors.arguments(block));
    DscBlockInputs inputs(block);
    fill(inputs, 6e4);  // the block clamps
    const DscBlockOutputs expected = forward(inputs.reference(block), inputs.running(), block.rounds_d());
    const Array y = tensors.y.values(), bounds = stored(Precision(block.dtype), expected.y);
    for (std::size_t i = 0; i < y.elements.size(); ++i) {
      const Bounded bound = bounds.elements[i];
      ASSERT_LE(std::abs(y.elements[i].value - bound.value), bound.error) << "element " << i;
    }
  }
}

TEST_P(FusedBlocksGpu, DscBlockBackwardEdges) {
  for_each_case(dsc_block_edges(GetParam().dtype), verify_dsc_block_backward);
}
/// As many as tiles are made for, of one position each.
TEST_P(FusedBlocksGpu, DscBlockBackwardOnePosition) {
  for (const Memory memory : {Memory::channels_last, Memory::contiguous}) {
    const DscBlockCase block{.dtype = GetParam().dtype,
                             .depthwise = {{128, 192, 1, 1}, centered(3)},
                             .outputs = 72,
                             .memories = Memories::all(memory)};
    for_each_case(std::vector<DscBlockCase>{block}, verify_dsc_block_backward);
  }
}
TEST_P(FusedBlocksGpu, DscBlockBackwardActivations) {
  for_each_case(dsc_block_activations(GetParam().dtype), verify_dsc_block_backward);
}
TEST_P(FusedBlocksGpu, DscBlockBackwardRandom) {
  for_each_case(random_dsc_blocks(GetParam().dtype), verify_dsc_block_backward);
}

TEST_P(FusedBlocksGpu, DscBlockFrozen) { for_each_case(dsc_block_edges(GetParam().dtype), verify_frozen_dsc_block); }

/// Of which the depthwise and the projecting half are one kernel on Hopper GPUs, with a residual.
std::vector<ConvChainCase> inference_with_residual(const GpuTarget& target) {
  std::vector<ConvChainCase> cases;
  if (target.wave_size != 32 || size_of(target.dtype) != 2) return cases;
  for (const std::int64_t size : {14, 28}) {
    InvertedResidualCase block{target.dtype, {9, 24, size, size}, 72, 24, centered(3)};
    block.memories = Memories::all(Memory::channels_last);
    cases.push_back(chain_of(block));
  }
  return cases;
}

TEST_P(FusedBlocksGpu, InvertedResidualInference) {
  for_each_case(inverted_residual_chains(GetParam().dtype), verify_conv_chain_inference);
  for_each_case(inference_with_residual(GetParam()), verify_conv_chain_inference);
}
TEST_P(FusedBlocksGpu, InvertedResidual) {
  for_each_case(inverted_residual_chains(GetParam().dtype), verify_conv_chain);
}
TEST_P(FusedBlocksGpu, InvertedResidualBackward) {
  for_each_case(inverted_residual_chains(GetParam().dtype), verify_conv_chain_backward);
}
TEST_P(FusedBlocksGpu, GatedResidualEdges) {
  for_each_case(inverted_residual_edges(GetParam().dtype), verify_gated_residual);
}
TEST_P(FusedBlocksGpu, GatedResidualBackwardEdges) {
  for_each_case(inverted_residual_edges(GetParam().dtype), verify_gated_residual_backward);
}
TEST_P(FusedBlocksGpu, GatedResidualRandom) {
  for_each_case(random_inverted_residuals(GetParam().dtype), verify_gated_residual);
  for_each_case(random_inverted_residuals(GetParam().dtype), verify_gated_residual_backward);
}

TEST_P(FusedBlocksGpu, ConvChainEdges) { for_each_case(conv_chain_edges(GetParam().dtype), verify_conv_chain); }
TEST_P(FusedBlocksGpu, ConvChainRandom) { for_each_case(random_conv_chains(GetParam().dtype), verify_conv_chain); }
TEST_P(FusedBlocksGpu, ConvChainInference) {
  for_each_case(conv_chain_edges(GetParam().dtype), verify_conv_chain_inference);
  for_each_case(random_conv_chains(GetParam().dtype), verify_conv_chain_inference);
}
TEST_P(FusedBlocksGpu, ConvChainBackwardEdges) {
  for_each_case(conv_chain_edges(GetParam().dtype), verify_conv_chain_backward);
}
TEST_P(FusedBlocksGpu, ConvChainBackwardRandom) {
  for_each_case(random_conv_chains(GetParam().dtype), verify_conv_chain_backward);
}

TEST_P(FusedBlocksGpu, ConvChainByForce) { verify_conv_chains_by_force(GetParam().dtype, 7); }

TEST_P(FusedBlocksGpu, EmptyBatch) {
  verify_empty_conv_chain(GetParam().dtype);
  verify_empty_dsc_block(GetParam().dtype);
  verify_empty_gated_residual(GetParam().dtype);
}

}  // namespace
}  // namespace fusedsc::reference
