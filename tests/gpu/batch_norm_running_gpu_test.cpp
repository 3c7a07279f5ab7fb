/// Running statistics moved by GPU kernels.
#include "gpu/gpu_under_test.h"
#include "ops/batch_norm_running_cases.h"

namespace fusedsc::reference {
namespace {

class BatchNormRunningGpu : public OnGpu {};
INSTANTIATE_TEST_SUITE_P(Targets, BatchNormRunningGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(BatchNormRunningGpu, AnyTypes) { verify_random_running(accumulation_type(GetParam().dtype)); }

}  // namespace
}  // namespace fusedsc::reference
