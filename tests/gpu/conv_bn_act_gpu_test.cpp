/// Convolution -> BatchNorm -> activation on a GPU: the kernels of images, and the chain for everything else.
#include "gpu/gpu_under_test.h"
#include "ops/conv_bn_act_cases.h"

namespace fusedsc::reference {
namespace {

class ConvBnActGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, ConvBnActGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(ConvBnActGpu, Edges) { for_each_case(conv_bn_act_edges(GetParam().dtype), verify_conv_bn_act); }
TEST_P(ConvBnActGpu, Activations) { for_each_case(conv_bn_act_activations(GetParam().dtype), verify_conv_bn_act); }
TEST_P(ConvBnActGpu, Random) {
  align_tensors(false);
  for_each_case(random_conv_bn_acts(GetParam().dtype), verify_conv_bn_act);
}
TEST_P(ConvBnActGpu, BackwardEdges) { for_each_case(conv_bn_act_edges(GetParam().dtype), verify_conv_bn_act_backward); }
TEST_P(ConvBnActGpu, BackwardActivations) {
  for_each_case(conv_bn_act_activations(GetParam().dtype), verify_conv_bn_act_backward);
}
TEST_P(ConvBnActGpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(random_conv_bn_acts(GetParam().dtype), verify_conv_bn_act_backward);
}

/// float32 whose products tensor cores do.
TEST_P(ConvBnActGpu, Tf32) {
  if (GetParam().dtype != DataType::float32) GTEST_SKIP() << "it is for float32";
  for (const auto& cases : {conv_bn_act_edges(DataType::float32), conv_bn_act_activations(DataType::float32)}) {
    for_each_case(with_tf32(cases), verify_conv_bn_act);
    for_each_case(with_tf32(cases), verify_conv_bn_act_backward);
  }
}
/// Factors are rounded, not cut off.
TEST_P(ConvBnActGpu, Tf32Rounds) {
  if (GetParam().dtype != DataType::float32) GTEST_SKIP() << "it is for float32";
  std::vector<ConvBnActCase> cases = with_tf32(conv_bn_act_edges(DataType::float32));
  for (ConvBnActCase& block : cases) block.nearly_tf32 = true;
  for_each_case(cases, verify_conv_bn_act);
}
TEST_P(ConvBnActGpu, Tf32Random) {
  if (GetParam().dtype != DataType::float32) GTEST_SKIP() << "it is for float32";
  align_tensors(false);
  for_each_case(with_tf32(random_conv_bn_acts(DataType::float32)), verify_conv_bn_act);
  for_each_case(with_tf32(random_conv_bn_acts(DataType::float32)), verify_conv_bn_act_backward);
}
TEST_P(ConvBnActGpu, EmptyBatch) { verify_empty_conv_bn_act(GetParam().dtype); }

}  // namespace
}  // namespace fusedsc::reference
