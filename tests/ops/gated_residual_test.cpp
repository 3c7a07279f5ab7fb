#include "ops/gated_residual_verify.h"

#include "ops/each_target.h"
#include "ops/empty_blocks.h"
#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

class GatedResidualOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, GatedResidualOf, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(GatedResidualOf, ForwardEdges) { for_each_case(inverted_residual_edges(GetParam()), verify_gated_residual); }
TEST_P(GatedResidualOf, ForwardRandom) { for_each_case(random_inverted_residuals(GetParam()), verify_gated_residual); }
TEST_P(GatedResidualOf, BackwardEdges) {
  for_each_case(inverted_residual_edges(GetParam()), verify_gated_residual_backward);
}
TEST_P(GatedResidualOf, BackwardRandom) {
  for_each_case(random_inverted_residuals(GetParam()), verify_gated_residual_backward);
}

class GatedResidualOn : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, GatedResidualOn, EachTarget::all(), EachTarget::name);

TEST_P(GatedResidualOn, SomeCases) {
  for (const DataType dtype : kDataTypes) {
    for_some_cases(inverted_residual_edges(dtype), verify_gated_residual);
    for_some_cases(inverted_residual_edges(dtype), verify_gated_residual_backward);
  }
}

InvertedResidualCase right_block() {
  return {DataType::float32, {2, 8, 6, 7}, 24, 8, {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}}};
}

TEST(GatedResidual, MistakesOfForward) {
  using Arguments = GatedResidualArguments;
  constexpr Operator<Arguments> kFeatures{gated_residual_features, gated_residual_features_workspace_bytes};
  constexpr Operator<Arguments> kProjection{gated_residual_projection, gated_residual_projection_workspace_bytes};
  InvertedResidualTensors tensors(right_block());
  GateTensors gates(right_block());
  const Arguments right = gates.arguments(tensors.arguments(right_block()));
  const Mistakes<Arguments> of_both = {
      {"x", [](Arguments& a) { a.block.x.data = nullptr; }},
      {"d", [](Arguments& a) { a.block.d.data = nullptr; }},
      {"d", [](Arguments& a) { a.block.d.sizes[2] += 1; }},
      {"dw_weight", [](Arguments& a) { a.block.dw_weight.dtype = DataType::float64; }},
      {"project_bn.mean", [](Arguments& a) { a.block.project_bn.mean = {}; }},
  };
  verify_mistakes(kFeatures, right, of_both);
  verify_mistakes(kFeatures, right,
                  {
                      {"dw_weight", [](Arguments& a) { a.block.dw_weight.data = nullptr; }},
                      {"e", [](Arguments& a) { a.block.e.data = nullptr; }},
                      {"e", [](Arguments& a) { a.block.e.data = inside(a.block.x.data); }},
                      {"mean", [](Arguments& a) { a.mean.data = nullptr; }},
                      {"mean", [](Arguments& a) { a.mean.sizes[2] = 2; }},
                      {"mean", [](Arguments& a) { a.mean.dtype = DataType::float64; }},
                      {"mean", [](Arguments& a) { a.mean.strides[1] = 0; }},
                      {"mean", [](Arguments& a) { a.mean.data = inside(a.block.d.data); }},
                  });
  verify_mistakes(kProjection, right, of_both);
  verify_mistakes(kProjection, right,
                  {
                      {"project_weight", [](Arguments& a) { a.block.project_weight.data = nullptr; }},
                      {"gate", [](Arguments& a) { a.gate.data = nullptr; }},
                      {"gate", [](Arguments& a) { a.gate.sizes[1] += 1; }},
                      {"gate", [](Arguments& a) { a.gate.dtype = DataType::float64; }},
                      {"z", [](Arguments& a) { a.z.data = nullptr; }},
                      {"z", [](Arguments& a) { a.z.sizes[0] += 1; }},
                      {"z", [](Arguments& a) { a.z.dtype = DataType::float16; }},
                      {"z", [](Arguments& a) { a.z.data = inside(a.block.d.data); }},
                      {"p", [](Arguments& a) { a.block.p.data = nullptr; }},
                      {"y", [](Arguments& a) { a.block.y.data = inside(a.block.x.data); }},
                  });
  verify_execution(kFeatures, right);
  verify_execution(kProjection, right);
}

TEST(GatedResidual, MistakesOfBackward) {
  using Arguments = GatedResidualBackwardArguments;
  constexpr Operator<Arguments> kProjection{gated_residual_projection_backward,
                                            gated_residual_projection_backward_workspace_bytes};
  constexpr Operator<Arguments> kFeatures{gated_residual_features_backward,
                                          gated_residual_features_backward_workspace_bytes};
  InvertedResidualBackward tensors(right_block());
  GateTensors gates(right_block());
  const Arguments right = gates.gradients(tensors.arguments(right_block()));
  const Mistakes<Arguments> of_both = {
      {"grad_y", [](Arguments& a) { a.block.grad_y.data = nullptr; }},
      {"grad_d", [](Arguments& a) { a.block.grad_d.sizes[1] += 1; }},
      {"grad_d", [](Arguments& a) { a.block.grad_d = {}; }},
      {"gate", [](Arguments& a) { a.gate.data = nullptr; }},
      {"gate", [](Arguments& a) { a.gate.sizes[1] += 1; }},
  };
  verify_mistakes(kProjection, right, of_both);
  verify_mistakes(kProjection, right,
                  {
                      {"z", [](Arguments& a) { a.z.data = nullptr; }},
                      {"z", [](Arguments& a) { a.z.dtype = DataType::float64; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.sizes[3] += 1; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.dtype = DataType::float64; }},
                      {"grad_gate", [](Arguments& a) { a.grad_gate.data = inside(a.z.data); }},
                  });
  verify_mistakes(kFeatures, right, of_both);
  verify_mistakes(kFeatures, right,
                  {
                      {"grad_mean", [](Arguments& a) { a.grad_mean.data = nullptr; }},
                      {"grad_mean", [](Arguments& a) { a.grad_mean.sizes[0] += 1; }},
                      {"grad_mean", [](Arguments& a) { a.grad_mean.dtype = DataType::bfloat16; }},
                      {"grad_e", [](Arguments& a) { a.block.grad_e = {}; }},
                  });
  verify_execution(kProjection, right);
  verify_execution(kFeatures, right);
}

TEST(GatedResidual, EmptyBatch) { verify_empty_gated_residual(DataType::float32); }

}  // namespace
}  // namespace fusedsc::reference
