/// BatchNorms folded by GPU kernels.
#include "gpu/gpu_under_test.h"
#include "ops/batch_norm_fold_cases.h"

namespace fusedsc::reference {
namespace {

class BatchNormFoldGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, BatchNormFoldGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(BatchNormFoldGpu, OneType) {
  for (const DataType sums : {DataType::float32, DataType::float64}) verify_folds_of(GetParam().dtype, sums);
}
TEST_P(BatchNormFoldGpu, AnyTypes) { verify_random_folds(accumulation_type(GetParam().dtype)); }

}  // namespace
}  // namespace fusedsc::reference
