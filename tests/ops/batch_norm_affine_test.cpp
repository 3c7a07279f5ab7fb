#include "ops/batch_norm_affine_cases.h"

namespace fusedsc::reference {
namespace {

class BatchNormArithmetic : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(SumTypes, BatchNormArithmetic, testing::Values(DataType::float32, DataType::float64),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormArithmetic, Finalize) { for_all_flags(GetParam(), verify_finalize); }

class BatchNormPass : public testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(DataTypes, BatchNormPass, testing::ValuesIn(kDataTypes),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(BatchNormPass, Apply) { for_each_case(batch_norm_cases(GetParam()), verify_apply); }
TEST_P(BatchNormPass, Reduce) { for_each_case(batch_norm_cases(GetParam()), verify_reduce); }
TEST_P(BatchNormPass, ReduceOfNan) { verify_reduce_of_nan(GetParam()); }

}  // namespace
}  // namespace fusedsc::reference
