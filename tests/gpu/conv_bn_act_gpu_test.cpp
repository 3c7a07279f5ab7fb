/// Convolution -> BatchNorm -> activation on a GPU: the kernels of images, and the chain for everything else.
#include "gpu/gpu_under_test.h"
#include "ops/conv_bn_act_cases.h"
#include "ops/forced_choices.h"

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

/// Those of the edges that the kernels for images can run, float32 with TensorFloat-32.
std::vector<ConvBnActCase> cases_of_images(DataType dtype) {
  std::vector<ConvBnActCase> cases;
  for (ConvBnActCase block : conv_bn_act_edges(dtype)) {
    block.tf32 = dtype == DataType::float32;
    if (block.memories.x != Memory::channels_last || block.outputs % 8 != 0 || block.outputs > 64) continue;
    cases.push_back(block);
  }
  ConvBnActCase tall = cases.front();  // tiles of every height
  tall.x = {1, 3, 19, 32};
  cases.push_back(tall);
  return cases;
}

/// Whether there must be one.
bool has_kernel_of_images(const GpuTarget& target) {
  const ConvBnActCase block = cases_of_images(target.dtype).front();
  ConvBnActForward tensors(block);
  const std::string why_not = explain_conv_bn_act(tensors.arguments(block)).front().why_not;
  const bool has_products = why_not.find("this GPU has no products") == std::string::npos;
  return has_products && target.wave_size == 32 && target.dtype != DataType::float64;
}

/// By each kernel of the registry that can, with each of its configs in turn.
TEST_P(ConvBnActGpu, ByForce) {
  ForcedRuns forward, backward;
  std::size_t turn = 0;
  for_each_case(cases_of_images(GetParam().dtype), [&](const ConvBnActCase& block) {
    verify_by_some(
        "conv_bn_act.forward", 4, turn, [&] { verify_conv_bn_act(block); }, forward);
    verify_by_some(
        "conv_bn_act.backward", 3, turn, [&] { verify_conv_bn_act_backward(block); }, backward);
    ++turn;
  });
  EXPECT_GT(runs_of(forward, "composed"), 0);
  EXPECT_GT(runs_of(backward, "composed"), 0);
  if (!has_kernel_of_images(GetParam())) return;
  EXPECT_GE(runs_of(forward, "gpu"), 50);
  EXPECT_GE(runs_of(backward, "gpu"), 40);
  const std::set<int> all_rows{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(values_of(forward, "gpu", tuning::Knob::rows), all_rows);
  EXPECT_EQ(values_of(backward, "gpu", tuning::Knob::rows), all_rows);
  EXPECT_EQ(values_of(forward, "gpu", tuning::Knob::channels), (std::set{8, 16, 32}));
}

/// What is said is what runs; and what there is instead, where a config does not fit.
TEST_P(ConvBnActGpu, ExplainAndForceSayWhatRuns) {
  if (!has_kernel_of_images(GetParam())) GTEST_SKIP() << "there is no other kernel than what composes";
  const ConvBnActCase block = cases_of_images(GetParam().dtype).front();
  ConvBnActForward tensors(block);
  ConvBnActBackward gradients(block);
  const ConvBnActArguments arguments = tensors.arguments(block);
  const ConvBnActBackwardArguments backward = gradients.arguments(block);
  const auto forward = [&] { run(kConvBnAct, arguments); };
  const std::string choice = expect_explained("conv_bn_act.forward", explain_conv_bn_act(arguments), forward);
  EXPECT_TRUE(choice.starts_with("gpu/channels=32 rows=")) << choice;
  EXPECT_TRUE(expect_explained("conv_bn_act.backward", explain_conv_bn_act_backward(backward), [&] {
                run(kConvBnActBackward, backward);
              }).starts_with("gpu/rows="));
  const std::string no_kernel = "conv_bn_act: gpu: there is no kernel with \"";
  for (const char* config : {"channels=24 rows=4", "channels=32", "channels=32 rows=9", "rows=2",
                             "channels=32 rows=4 stages=2", "channels=32 rows=2000000000"}) {
    EXPECT_EQ(
        what_is_said("conv_bn_act.forward", "gpu/" + std::string(config), forward),
        no_kernel + config + "\" for this problem, or its tiles do not fit shared memory; it knows channels and rows");
  }
  EXPECT_EQ(what_is_said("conv_bn_act.backward", "gpu/channels=16 rows=2", [&] { run(kConvBnActBackward, backward); }),
            no_kernel + "channels=16 rows=2\" for this problem, or its tiles do not fit shared memory; it knows rows");
  verify_conv_bn_act(block);
}
TEST_P(ConvBnActGpu, EmptyBatch) { verify_empty_conv_bn_act(GetParam().dtype); }

}  // namespace
}  // namespace fusedsc::reference
