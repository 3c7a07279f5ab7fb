/// Squeeze-and-excitation's GPU kernels, with all that is around them.
#include "gpu/gpu_under_test.h"
#include "ops/squeeze_excite_cases.h"

namespace fusedsc::reference {
namespace {

class SqueezeExciteGpu : public OnGpu {
 protected:
  /// Vectors of channels in all of their widths, few images and many, and maps that several blocks share.
  static std::vector<SqueezeExciteCase> cases() {
    const DataType dtype = GetParam().dtype;
    std::vector<SqueezeExciteCase> cases = squeeze_excite_cases(dtype);
    for (const std::int64_t channels : {8, 12, 6, 5, 64}) {
      for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
        for (const std::int64_t width : {16, 17}) {
          cases.push_back({dtype, {3, channels, 24, width}, Activation::silu, Memories::all(memory)});
        }
      }
    }
    return cases;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SqueezeExciteGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(SqueezeExciteGpu, Squeeze) { for_each_case(cases(), verify_squeeze); }
TEST_P(SqueezeExciteGpu, Excite) { for_each_case(cases(), verify_excite); }
TEST_P(SqueezeExciteGpu, ExciteBackward) { for_each_case(cases(), verify_excite_backward); }
TEST_P(SqueezeExciteGpu, SqueezeBackward) { for_each_case(cases(), verify_squeeze_backward); }
TEST_P(SqueezeExciteGpu, EmptyBatch) { verify_empty_squeeze_excite(GetParam().dtype); }

}  // namespace
}  // namespace fusedsc::reference
