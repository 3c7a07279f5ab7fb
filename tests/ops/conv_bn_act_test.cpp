#include "ops/conv_bn_act_cases.h"
#include "ops/forced_choices.h"

namespace fusedsc::reference {
namespace {

class ConvBnActOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, ConvBnActOf, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ConvBnActOf, ForwardEdges) { for_each_case(conv_bn_act_edges(GetParam()), verify_conv_bn_act); }
TEST_P(ConvBnActOf, ForwardActivations) { for_each_case(conv_bn_act_activations(GetParam()), verify_conv_bn_act); }
TEST_P(ConvBnActOf, ForwardRandom) { for_each_case(random_conv_bn_acts(GetParam()), verify_conv_bn_act); }
TEST_P(ConvBnActOf, BackwardEdges) { for_each_case(conv_bn_act_edges(GetParam()), verify_conv_bn_act_backward); }
TEST_P(ConvBnActOf, BackwardActivations) {
  for_each_case(conv_bn_act_activations(GetParam()), verify_conv_bn_act_backward);
}
TEST_P(ConvBnActOf, BackwardRandom) { for_each_case(random_conv_bn_acts(GetParam()), verify_conv_bn_act_backward); }
TEST_P(ConvBnActOf, ByForce) {
  ForcedRuns forward, backward;
  std::size_t number = 0;
  for_each_case(conv_bn_act_edges(GetParam()), [&](const ConvBnActCase& block) {
    if (++number % 5 != 0) return;
    verify_by_some(
        "conv_bn_act.forward", 1, 0, [&] { verify_conv_bn_act(block); }, forward);
    verify_by_some(
        "conv_bn_act.backward", 1, 0, [&] { verify_conv_bn_act_backward(block); }, backward);
  });
  EXPECT_GT(forward["composed"], 0);
  EXPECT_GT(backward["composed"], 0);
}
TEST_P(ConvBnActOf, EmptyBatch) { verify_empty_conv_bn_act(GetParam()); }

/// What is said is what runs.
TEST(ConvBnActExplain, SaysWhatRuns) {
  const ConvBnActCase block{.x = {2, 3, 8, 8}, .outputs = 4, .window = centered(3, 2)};
  ConvBnActForward forward(block);
  ConvBnActBackward backward(block);
  const ConvBnActArguments arguments = forward.arguments(block);
  const ConvBnActBackwardArguments gradients = backward.arguments(block);
  EXPECT_EQ(
      expect_explained("conv_bn_act.forward", explain_conv_bn_act(arguments), [&] { run(kConvBnAct, arguments); }),
      "composed");
  EXPECT_EQ(expect_explained("conv_bn_act.backward", explain_conv_bn_act_backward(gradients),
                             [&] { run(kConvBnActBackward, gradients); }),
            "composed");
  EXPECT_EQ(what_is_said("conv_bn_act.forward", "composed/rows=3", [&] { run(kConvBnAct, arguments); }),
            "composed: there is nothing to choose about it, but its config is rows=3");
}

TEST(ConvBnActChecks, SayWhatIsWrong) {
  const ConvBnActCase block{.x = {2, 3, 8, 8}, .outputs = 4, .window = centered(3, 2)};
  ConvBnActForward tensors(block);
  const auto message = [&](const auto& spoil) {
    ConvBnActArguments arguments = tensors.arguments(block);
    spoil(arguments);
    try {
      plan_conv_bn_act(arguments, 1);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message([](auto&) {}), "nothing");
  EXPECT_EQ(message([](auto& a) { a.weight.sizes[1] = 4; }),
            "weight: its sizes are [4, 4, 3, 3], but must be [4, 3, 3, 3], for the 3 channels of x");
  EXPECT_EQ(message([](auto& a) { a.eps = -1; }), "eps: it is -1; it must not be negative");
  EXPECT_EQ(message([&](auto& a) {
              a.training = true;
              a.scale = a.shift = tensors.scale;
            }),
            "scale: it is given in training; leave it out: it is for eval mode");
  EXPECT_EQ(message([&](auto& a) { a.scale = tensors.scale; }),
            "scale and shift: only one is given; give both or neither");
  const std::string strides = message([](auto& a) { a.weight.strides = {27, 1, 3, 9}; });
  EXPECT_NE(strides.find("composed: the weight is neither contiguous nor channels_last"), std::string::npos) << strides;
}

}  // namespace
}  // namespace fusedsc::reference
