#include "ops/batch_norm_fold_cases.h"

#include "ops/mistakes.h"

namespace fusedsc::reference {
namespace {

class BatchNormFold : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(SumTypes, BatchNormFold, testing::Values(DataType::float32, DataType::float64),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormFold, OneType) {
  for (const DataType vectors : kDataTypes) verify_folds_of(vectors, GetParam());
}
TEST_P(BatchNormFold, AnyTypes) { verify_random_folds(GetParam()); }

TEST(BatchNormFoldChecks, SayWhatIsWrong) {
  constexpr Operator<BatchNormFoldArguments> kFold{fold_batch_norms,
                                                   [](const BatchNormFoldArguments&, int) { return std::size_t{0}; }};
  Random random(33);
  std::vector<FoldedTensors> norms;
  BatchNormFoldArguments right;
  for (const std::int64_t channels : {8, 5}) {
    FoldedTensors& norm = norms.emplace_back(channels, 1e-5);
    for (Channels* vector : {&norm.weight, &norm.bias, &norm.mean, &norm.variance}) {
      *vector = Channels(DataType::float32, channels).fill(random, 1, 2);
    }
    right.batch_norms.push_back(norm.arguments());
  }
  Tensor statistics(DataType::float32, {1, 1, 5, 13});
  right.statistics = statistics;
  fold_batch_norms(right, {});
  verify_mistakes(kFold, right,
                  {{"weight of BatchNorm 1", [](auto& a) { a.batch_norms[1].weight.size = 8; }},
                   {"bias of BatchNorm 0", [](auto& a) { a.batch_norms[0].bias.size = 5; }},
                   {"mean of BatchNorm 0", [](auto& a) { a.batch_norms[0].mean.device = Device::gpu; }},
                   {"variance of BatchNorm 1", [](auto& a) { a.batch_norms[1].variance.size = 6; }},
                   {"eps of BatchNorm 1", [](auto& a) { a.batch_norms[1].eps = -1; }},
                   {"channels of BatchNorm 0", [](auto& a) { a.batch_norms[0] = {.channels = -8}; }},
                   {"statistics", [](auto& a) { a.statistics.sizes[3] = 12; }},
                   {"statistics", [](auto& a) { a.statistics.sizes[2] = 4; }},
                   {"statistics", [](auto& a) { a.statistics.dtype = DataType::float16; }},
                   {"statistics",
                    [](auto& a) {
                      a.statistics.strides = {65, 65, 1, 5};
                    }},
                   {"statistics", [](auto& a) { a.statistics.data = nullptr; }},
                   {"statistics", [](auto& a) { a.batch_norms[0].mean.data = inside(a.statistics.data); }}});
}

}  // namespace
}  // namespace fusedsc::reference
