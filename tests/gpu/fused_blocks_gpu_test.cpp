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
