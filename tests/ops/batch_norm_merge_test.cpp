#include "ops/batch_norm_merge_cases.h"

#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

class BatchNormMergeOf : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(SumTypes, BatchNormMergeOf, testing::Values(DataType::float32, DataType::float64),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormMergeOf, Statistics) {
  for (const bool has_parameters : {true, false}) verify_merge(GetParam(), has_parameters);
}
TEST_P(BatchNormMergeOf, Gradient) {
  for (const bool has_parameters : {true, false}) verify_merge_gradient(GetParam(), has_parameters);
}

TEST(BatchNormMerge, Mistakes) {
  Channels parts(DataType::float32, 2 * 17), sums(DataType::float32, 17), vector(DataType::float32, 8), other(vector),
      third(vector), fourth(vector), fifth(vector);
  using Arguments = BatchNormMergeArguments;
  const Arguments right{parts, 2, {}, {}, 0, vector, other, third, fourth, fifth};
  verify_mistakes(kBatchNormMerge, right,
                  {
                      {"mean", [](Arguments& a) { a.mean = {}; }},
                      {"parts", [](Arguments& a) { a.count = 3; }},
                      {"parts", [](Arguments& a) { a.parts.dtype = DataType::float64; }},
                      {"weight", [](Arguments& a) { a.weight = a.parts; }},
                      {"invstd", [](Arguments& a) { a.invstd = {}; }},
                      {"scale", [](Arguments& a) { a.scale.size = 7; }},
                      {"eps", [](Arguments& a) { a.eps = -1; }},
                  });
  using Gradient = BatchNormMergeGradientArguments;
  const Gradient right_gradient{sums, {}, vector, other, third, fourth, fifth};
  verify_mistakes(kBatchNormMergeGradient, right_gradient,
                  {
                      {"mean", [](Gradient& a) { a.mean = {}; }},
                      {"sums", [](Gradient& a) { a.sums.size = 16; }},
                      {"invstd", [](Gradient& a) { a.invstd.size = 7; }},
                      {"grad_scale", [](Gradient& a) { a.grad_scale = {}; }},
                      {"offset", [](Gradient& a) { a.offset.dtype = DataType::float64; }},
                  });
}

}  // namespace
}  // namespace fusedsc::reference
