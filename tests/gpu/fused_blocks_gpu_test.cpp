/// The fused blocks on a GPU: the chains of its operators, in every mode.
#include "gpu/gpu_under_test.h"
#include "ops/dsc_block_verify.h"
#include "ops/empty_blocks.h"
#include "ops/inverted_residual_verify.h"

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

/// Blocks for which there may be a kernel that keeps d in registers.
std::vector<DscBlockCase> inference_cases(DataType dtype) {
  const std::pair<DepthwiseGeometry, std::int64_t> kGeometries[] = {
      {{{2, 32, 28, 28}, centered(3)}, 16},     {{{1, 24, 9, 9}, centered(3, 2)}, 24},
      {{{3, 72, 14, 14}, centered(3)}, 40},     {{{2, 40, 13, 17}, centered(3, 2)}, 64},
      {{{5, 104, 7, 7}, centered(3)}, 96},      {{{1, 64, 30, 57}, centered(3)}, 32},
      {{{1, 8, 3, 40}, centered(3)}, 8},        {{{2, 8, 40, 3}, centered(3, 2)}, 8},
      {{{1, 16, 9, 12}, {{3, 3}, {1, 1}, {1, 1}, {0, 2, 2, 0}}}, 16},
  };
  std::vector<DscBlockCase> cases;
  for (const auto& [geometry, outputs] : kGeometries) {
    for (const Activation activation : {Activation::relu6, Activation::silu}) {
      const bool is_plain = activation == Activation::silu;
      cases.push_back({.dtype = dtype,
                       .depthwise = geometry,
                       .outputs = outputs,
                       .activation = activation,
                       .training = false,
                       .biases = !is_plain,
                       .affine = !is_plain,
                       .memories = Memories::all(Memory::channels_last)});
    }
  }
  return cases;
}

TEST_P(FusedBlocksGpu, DscBlockInference) { for_each_case(inference_cases(GetParam().dtype), verify_dsc_block); }

/// An infinity reaches the windows that see it, as what its own channel makes of it.
TEST_P(FusedBlocksGpu, DscBlockInferenceOfInfinities) {
  for (const DscBlockCase& block : inference_cases(GetParam().dtype)) {
    if (block.activation != Activation::relu6) continue;
    SCOPED_TRACE(testing::PrintToString(block));
    DscBlockForward tensors(block);
    Array x = tensors.inputs.x.values();
    for (std::size_t i = 0; i < x.elements.size(); i += 997) {
      x.elements[i].value = i % 2 == 0 ? std::numeric_limits<double>::infinity()
                                       : -std::numeric_limits<double>::infinity();
    }
    tensors.inputs.x.fill(x);
    run(kDscBlock, tensors.arguments(block));
    // The block clamps: any number as large has the same results, but for windows that see two of them.
    for (Bounded& element : x.elements) element.value = std::min(std::max(element.value, -6e4), 6e4);
    DscBlockInputs inputs(block);
    inputs.x.fill(x);
    const DscBlockOutputs expected = forward(inputs.reference(block), inputs.running(), block.rounds_d());
    const Array y = tensors.y.values(), bounds = stored(Precision(block.dtype), expected.y);
    for (std::size_t i = 0; i < y.elements.size(); ++i) {
      const Bounded bound = bounds.elements[i];
      ASSERT_LE(std::abs(y.elements[i].value - bound.value), bound.error) << "element " << i;
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(FusedBlocksGpu, DscBlockBackwardEdges) {
  for_each_case(dsc_block_edges(GetParam().dtype), verify_dsc_block_backward);
}
TEST_P(FusedBlocksGpu, DscBlockBackwardActivations) {
  for_each_case(dsc_block_activations(GetParam().dtype), verify_dsc_block_backward);
}
TEST_P(FusedBlocksGpu, DscBlockBackwardRandom) {
  for_each_case(random_dsc_blocks(GetParam().dtype), verify_dsc_block_backward);
}

TEST_P(FusedBlocksGpu, InvertedResidualEdges) {
  for_each_case(inverted_residual_edges(GetParam().dtype), verify_inverted_residual);
}
TEST_P(FusedBlocksGpu, InvertedResidualInference) {
  for_each_case(inverted_residual_edges(GetParam().dtype), verify_inverted_residual_inference);
  for_each_case(random_inverted_residuals(GetParam().dtype), verify_inverted_residual_inference);
}
TEST_P(FusedBlocksGpu, InvertedResidualRandom) {
  for_each_case(random_inverted_residuals(GetParam().dtype), verify_inverted_residual);
}
TEST_P(FusedBlocksGpu, InvertedResidualBackwardEdges) {
  for_each_case(inverted_residual_edges(GetParam().dtype), verify_inverted_residual_backward);
}
TEST_P(FusedBlocksGpu, InvertedResidualBackwardRandom) {
  for_each_case(random_inverted_residuals(GetParam().dtype), verify_inverted_residual_backward);
}

TEST_P(FusedBlocksGpu, EmptyBatch) {
  verify_empty_dsc_block(GetParam().dtype);
  verify_empty_inverted_residual(GetParam().dtype);
}

}  // namespace
}  // namespace fusedsc::reference
