/// BatchNorm's GPU kernels, with all that is around them.
#include "gpu/gpu_under_test.h"
#include "ops/batch_norm_merge_cases.h"

namespace fusedsc::reference {
namespace {

class BatchNormGpu : public OnGpu {
 protected:
  /// Many blocks, and vectors of channels in all of their widths.
  static std::vector<BatchNormCase> cases(DataType dtype) {
    std::vector<BatchNormCase> cases = batch_norm_cases(dtype);
    for (const std::int64_t channels : {8, 12, 6, 5, 64}) {
      for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
        for (const std::int64_t width : {16, 17}) {
          cases.push_back({dtype, {3, channels, 24, width}, Activation::hardswish, true, Memories::all(memory)});
        }
      }
    }
    return cases;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, BatchNormGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(BatchNormGpu, Finalize) { for_all_flags(accumulation_type(GetParam().dtype), verify_finalize); }
TEST_P(BatchNormGpu, Merge) {
  for (const bool has_parameters : {true, false}) {
    verify_merge(accumulation_type(GetParam().dtype), has_parameters);
    verify_merge_gradient(accumulation_type(GetParam().dtype), has_parameters);
  }
}
TEST_P(BatchNormGpu, Apply) { for_each_case(cases(GetParam().dtype), verify_apply); }
TEST_P(BatchNormGpu, Reduce) { for_each_case(cases(GetParam().dtype), verify_reduce); }
TEST_P(BatchNormGpu, ReduceOfNan) { verify_reduce_of_nan(GetParam().dtype); }

}  // namespace
}  // namespace fusedsc::reference
