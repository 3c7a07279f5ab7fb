#include "ops/inverted_residual_verify.h"

#include "ops/each_target.h"

namespace fusedsc::reference {
namespace {

class InvertedResidualOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, InvertedResidualOf, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(InvertedResidualOf, ForwardEdges) {
  for_each_case(inverted_residual_edges(GetParam()), verify_inverted_residual);
}
TEST_P(InvertedResidualOf, ForwardRandom) {
  for_each_case(random_inverted_residuals(GetParam()), verify_inverted_residual);
}
TEST_P(InvertedResidualOf, Inference) {
  for_each_case(inverted_residual_edges(GetParam()), verify_inverted_residual_inference);
  for_each_case(random_inverted_residuals(GetParam()), verify_inverted_residual_inference);
}
TEST_P(InvertedResidualOf, BackwardEdges) {
  for_each_case(inverted_residual_edges(GetParam()), verify_inverted_residual_backward);
}
TEST_P(InvertedResidualOf, BackwardRandom) {
  for_each_case(random_inverted_residuals(GetParam()), verify_inverted_residual_backward);
}

class InvertedResidualOn : public EachTarget {};
INSTANTIATE_TEST_SUITE_P(CpuTargets, InvertedResidualOn, EachTarget::all(), EachTarget::name);

TEST_P(InvertedResidualOn, SomeCases) {
  for (const DataType dtype : kDataTypes) {
    for_some_cases(inverted_residual_edges(dtype), verify_inverted_residual);
    for_some_cases(random_inverted_residuals(dtype), verify_inverted_residual);
    for_some_cases(inverted_residual_edges(dtype), verify_inverted_residual_backward);
    for_some_cases(random_inverted_residuals(dtype), verify_inverted_residual_backward);
  }
}

}  // namespace
}  // namespace fusedsc::reference
