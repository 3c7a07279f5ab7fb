#include "ops/conv_chain_verify.h"
#include "ops/each_target.h"
#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

class ConvChainOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, ConvChainOf, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ConvChainOf, ForwardEdges) { for_each_case(conv_chain_edges(GetParam()), verify_conv_chain); }
TEST_P(ConvChainOf, ForwardRandom) { for_each_case(random_conv_chains(GetParam()), verify_conv_chain); }
TEST_P(ConvChainOf, Inference) {
  for_each_case(conv_chain_edges(GetParam()), verify_conv_chain_inference);
  for_each_case(random_conv_chains(GetParam()), verify_conv_chain_inference);
}
TEST_P(ConvChainOf, BackwardEdges) { for_each_case(conv_chain_edges(GetParam()), verify_conv_chain_backward); }
TEST_P(ConvChainOf, BackwardRandom) { for_each_case(random_conv_chains(GetParam()), verify_conv_chain_backward); }
TEST_P(ConvChainOf, GradientsAlone) { for_each_case(conv_chain_edges(GetParam()), verify_gradients_alone); }
TEST_P(ConvChainOf, InvertedResiduals) {
  for_each_case(inverted_residual_chains(GetParam()), verify_conv_chain);
  for_each_case(inverted_residual_chains(GetParam()), verify_conv_chain_inference);
  for_each_case(inverted_residual_chains(GetParam()), verify_conv_chain_backward);
}
TEST_P(ConvChainOf, ByForce) { verify_conv_chains_by_force(GetParam(), 2); }
TEST_P(ConvChainOf, EmptyBatch) { verify_empty_conv_chain(GetParam()); }

class ConvChainOn : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, ConvChainOn, EachTarget::all(), EachTarget::name);

TEST_P(ConvChainOn, SomeCases) {
  for (const DataType dtype : kDataTypes) {
    for_some_cases(conv_chain_edges(dtype), verify_conv_chain);
    for_some_cases(random_conv_chains(dtype), verify_conv_chain);
    for_some_cases(conv_chain_edges(dtype), verify_conv_chain_backward);
    for_some_cases(random_conv_chains(dtype), verify_conv_chain_backward);
    for_some_cases(inverted_residual_chains(dtype), verify_conv_chain);
    for_some_cases(inverted_residual_chains(dtype), verify_conv_chain_backward);
  }
}

/// A first chain with all that can be wrong.
ConvChainCase right_chain() {
  ConvChainCase chain = usual_chains().front();
  chain.stages[1].bias = true;
  chain.branch_scale = true;
  return chain;
}

TEST(ConvChainChecks, Forward) {
  using Arguments = ConvChainArguments;
  ConvChainTensors tensors(right_chain());
  const Arguments right = tensors.arguments(right_chain());
  verify_mistakes(kConvChain, right,
                  {
                      {"stages", [](Arguments& a) { a.stages.clear(); }},
                      {"x", [](Arguments& a) { a.x.data = nullptr; }},
                      {"stages[0].weight", [](Arguments& a) { a.stages[0].weight.data = nullptr; }},
                      {"stages[1].weight", [](Arguments& a) { a.stages[1].weight.dtype = DataType::float64; }},
                      {"stages[1].weight", [](Arguments& a) { a.stages[1].weight.sizes[0] += 1; }},
                      {"stages[1].stride", [](Arguments& a) { a.stages[1].window.stride[0] = 0; }},
                      {"stages[1].bias", [](Arguments& a) { a.stages[1].bias.size += 1; }},
                      {"stages[0].bn.weight", [](Arguments& a) { a.stages[0].bn->weight.size += 1; }},
                      {"stages[1].bn.bias", [](Arguments& a) { a.stages[1].bn->bias.dtype = DataType::float64; }},
                      {"stages[2].bn.mean", [](Arguments& a) { a.stages[2].bn->mean = {}; }},
                      {"stages[1].bn.invstd", [](Arguments& a) { a.stages[1].bn->invstd.size += 1; }},
                      {"stages[0].bn.variance", [](Arguments& a) { a.stages[0].bn->variance.size += 1; }},
                      {"stages[1].bn.scale", [](Arguments& a) { a.stages[1].bn->scale.size += 1; }},
                      {"stages[1].bn.shift", [](Arguments& a) { a.stages[1].bn->shift.dtype = DataType::float64; }},
                      {"stages[2].bn.scale and .shift", [](Arguments& a) { a.stages[2].bn->shift = {}; }},
                      {"stages[2].bn.eps", [](Arguments& a) { a.stages[2].bn->eps = -1; }},
                      {"stages[0].raw", [](Arguments& a) { a.stages[0].raw.sizes[1] += 1; }},
                      {"stages[1].raw", [](Arguments& a) { a.stages[1].raw.dtype = DataType::float64; }},
                      {"stages[1].raw", [](Arguments& a) { a.stages[1].raw.data = inside(a.stages[0].raw.data); }},
                      {"stages[2].raw", [](Arguments& a) { a.stages[2].raw.strides[3] = 0; }},
                      {"branch_scale", [](Arguments& a) { a.branch_scale.size += 1; }},
                      {"branch_scale", [](Arguments& a) { a.branch_scale.dtype = DataType::float64; }},
                      {"residual", [](Arguments& a) { a.stages.resize(1); }},
                      {"repeats_training", [](Arguments& a) { a.repeats_training = true; }},
                      {"y", [](Arguments& a) { a.y.data = nullptr; }},
                      {"y", [](Arguments& a) { a.y.sizes[1] += 1; }},
                      {"y", [](Arguments& a) { a.y.data = inside(a.x.data); }},
                      {"stages[1].bn.mean", [](Arguments& a) { a.stages[1].bn->mean.data = inside(a.x.data); }},
                  });
  verify_execution(kConvChain, right);
}

TEST(ConvChainChecks, Backward) {
  using Arguments = ConvChainBackwardArguments;
  ConvChainBackward tensors(right_chain());
  const Arguments right = tensors.arguments(right_chain());
  verify_mistakes(kConvChainBackward, right,
                  {
                      {"x", [](Arguments& a) { a.forward.x.data = nullptr; }},
                      {"stages[0].raw", [](Arguments& a) { a.forward.stages[0].raw.sizes[2] += 1; }},
                      {"stages[1].raw", [](Arguments& a) { a.forward.stages[1].raw.data = nullptr; }},
                      {"grad_y", [](Arguments& a) { a.grad_y.data = nullptr; }},
                      {"grad_y", [](Arguments& a) { a.grad_y.sizes[1] += 1; }},
                      {"grad_y", [](Arguments& a) { a.grad_y.dtype = DataType::float64; }},
                      {"grad_x", [](Arguments& a) { a.grad_x.strides[0] = 0; }},
                      {"grad_x", [](Arguments& a) { a.grad_x.data = inside(a.grad_y.data); }},
                      {"stages", [](Arguments& a) { a.stages.pop_back(); }},
                      {"stages[0].grad_weight", [](Arguments& a) { a.stages[0].weight.sizes[0] += 1; }},
                      {"stages[1].grad_weight", [](Arguments& a) { a.stages[1].weight.dtype = DataType::float64; }},
                      {"stages[1].grad_bias", [](Arguments& a) { a.stages[1].bias.size += 1; }},
                      {"stages[0].grad_bn.weight", [](Arguments& a) { a.stages[0].bn.weight.size += 1; }},
                      {"stages[2].grad_bn.bias", [](Arguments& a) { a.stages[2].bn.bias.dtype = DataType::float64; }},
                      {"stages[1].grad_bn", [](Arguments& a) { a.forward.stages[1].bn = {}; }},
                  });
  verify_execution(kConvChainBackward, right);
}

/// A chain in eval mode of which nothing is kept.
struct InferenceChain {
  ConvChainCase chain = usual_chains().front();
  ConvChainTensors tensors{chain};
  ConvChainArguments arguments;

  InferenceChain() {
    chain.training = false;
    arguments = tensors.arguments(chain);
    for (ConvStage& stage : arguments.stages) stage.raw = {};
  }
};

TEST(ConvChainExplain, NamesTheReason) {
  InferenceChain inference;
  ConvChainArguments keeps = inference.tensors.arguments(inference.chain);
  EXPECT_EQ(explain_conv_chain(keeps)[0].why_not, "raw results are to be kept");
  EXPECT_TRUE(explain_conv_chain(inference.arguments)[0].taken);
}

/// What it says is what runs, as the prior has it; and what is forced.
TEST(ConvChainExplain, SaysWhatRuns) {
  InferenceChain inference;
  const ConvChainArguments& arguments = inference.arguments;
  const auto forward = [&] { run(kConvChain, arguments); };
  EXPECT_EQ(expect_explained("conv_chain.forward", explain_conv_chain(arguments), forward), "inference");
  const Forced forced("conv_chain.forward", "composed");
  const std::vector<Candidate> candidates = explain_conv_chain(arguments);
  EXPECT_FALSE(candidates[0].taken);
  EXPECT_EQ(candidates[0].why_not, "");
  EXPECT_TRUE(candidates[1].taken);
  EXPECT_EQ(candidates[1].why, "forced");

  ConvChainBackward backward(right_chain());
  const ConvChainBackwardArguments gradients = backward.arguments(right_chain());
  EXPECT_EQ(expect_explained("conv_chain.backward", explain_conv_chain_backward(gradients),
                             [&] { run(kConvChainBackward, gradients); }),
            "composed");
}

TEST(ConvChainExplain, ForceSaysWhatItCannot) {
  ConvChainTensors tensors(right_chain());
  const ConvChainArguments arguments = tensors.arguments(right_chain());
  const auto said = [&](const char* choice) {
    return what_is_said("conv_chain.forward", choice, [&] { run(kConvChain, arguments); });
  };
  EXPECT_EQ(said("inference"),
            "conv_chain.forward: inference is forced, but cannot run these arguments: it is for eval mode\n"
            "  inference: it is for eval mode\n  composed: it can");
  EXPECT_EQ(said("composed/rows=3"), "composed: there is nothing to choose about it, but its config is rows=3");
  verify_conv_chain(right_chain());
}

/// What its kernels are made of comes to light as they are tried: for as many threads as it is for itself.
TEST(ConvChainRecorded, ForTheSameThreads) {
  constexpr int kThreads = 3;
  InferenceChain inference;
  tuning::start_recording();
  plan_conv_chain(inference.arguments, kThreads);
  std::vector<std::string> choices;
  for (const auto& problem : tuning::recorded_problems()) {
    if (std::string_view(problem->role) == "conv_chain.forward") choices = problem->candidates(8);
  }
  tuning::stop_recording();
  EXPECT_EQ(choices, (std::vector<std::string>{"inference", "composed"}));
  EXPECT_GT(tuning::recorded_problems().size(), 3u);
  for (const auto& problem : tuning::recorded_problems()) {
    EXPECT_EQ(problem->threads, kThreads) << problem->role << " of " << problem->text;
    EXPECT_EQ(problem->depth == 0, std::string_view(problem->role) == "conv_chain.forward") << problem->role;
  }
}

/// What merges with other processes can be run by nobody but its caller: the chain is not noted down to be measured,
/// but what it is made of is.
TEST(ConvChainRecorded, NotWhatCallsBack) {
  const ConvChainMerge merge{[](auto&&...) {}, [](auto&&...) {}};
  for (const bool merges : {false, true}) {
    ConvChainCase chain = right_chain();
    chain.branch_scale = false;
    ConvChainTensors forward(chain);
    ConvChainBackward backward(chain);
    ConvChainArguments arguments = forward.arguments(chain);
    ConvChainBackwardArguments gradients = backward.arguments(chain);
    if (merges) arguments.merge = gradients.forward.merge = &merge;
    tuning::start_recording();
    plan_conv_chain(arguments, 1);
    plan_conv_chain_backward(gradients, 1);
    tuning::stop_recording();
    std::map<std::string, int> met;
    for (const auto& problem : tuning::recorded_problems()) ++met[problem->role];
    EXPECT_EQ(met["conv_chain.forward"], merges ? 0 : 1);
    EXPECT_EQ(met["conv_chain.backward"], merges ? 0 : 1);
    EXPECT_GT(met["pointwise_conv2d.forward"], 0);
    EXPECT_GT(met["depthwise_conv2d.backward"], 0);
  }
}

}  // namespace
}  // namespace fusedsc::reference
