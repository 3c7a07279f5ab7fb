/// Generated kernels against the double-precision reference: on the host executor those that were compiled with this
/// test, on a GPU those that are compiled at run time.
#include "gpu/generated_samples.h"

#include "fusedsc/tuning/compiler/allowed.h"

namespace fusedsc::reference {
namespace {

tuning::Config config_under_test;

template <class Arguments>
Plan<Arguments> plan_of(const tuning::Kernel<Arguments>& kernel, const Arguments& arguments) {
  const tuning::CompilingAllowed compiling;
  return kernel.plan(arguments, config_under_test, 1);
}

/// An operator, by its generated kernels alone.
template <class Geometry, class Arguments, tuning::Kernel<Arguments> (*kKernel)()>
struct Generated : Geometry {
  static void run(const Arguments& a, const Execution& execution) { plan_of(kKernel(), a).unchecked_run(a, execution); }
  static std::size_t workspace_bytes(const Arguments& a, int /*threads*/) {
    return plan_of(kKernel(), a).workspace_bytes;
  }
  static constexpr Operator<Arguments> kForward{run, workspace_bytes};
};
using GeneratedPointwise = Generated<PointwiseGeometry, PointwiseArguments, gpu::pointwise_generated>;
using GeneratedDepthwise = Generated<DepthwiseGeometry, DepthwiseArguments, gpu::depthwise_generated>;

class GeneratedGpu : public OnGpu {
 protected:
  template <class Generated, class Geometry, class Arguments>
  static void verify_all(const tuning::Kernel<Arguments>& kernel) {
    std::size_t number = 0, runs = 0;
    for (const ForwardCase<Geometry>& problem : generated_problems<Geometry>(GetParam().dtype)) {
      SCOPED_TRACE(testing::PrintToString(problem));
      const Arguments arguments = arguments_of_problem(problem);
      for (const tuning::Config& config : sampled(kernel.configs(arguments), number++)) {
        SCOPED_TRACE(tuning::printed(config));
        config_under_test = config;
        verify_forward<Generated>({problem.dtype, {problem.geometry}, problem.seams, problem.memories});
        ++runs;
        if (testing::Test::HasFailure()) return;
      }
    }
    EXPECT_GE(runs, number) << "problems without a kernel";
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, GeneratedGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(GeneratedGpu, Pointwise) { verify_all<GeneratedPointwise, PointwiseGeometry>(gpu::pointwise_generated()); }
TEST_P(GeneratedGpu, Depthwise) { verify_all<GeneratedDepthwise, DepthwiseGeometry>(gpu::depthwise_generated()); }

/// A config that does not fit is said, and so is one of another kind.
TEST_P(GeneratedGpu, WrongConfigs) {
  const auto pointwise = arguments_of_problem(generated_problems<PointwiseGeometry>(GetParam().dtype).front());
  for (const char* words : {"", "rows=7 columns=64 depth=64 groups=1 block_n=1", "wave_w=8 group_c=8",
                            "wave_w=64 wave_c=256 wave_n=16 repeat_w=4 repeat_c=4 block_n=2 group_c=32"}) {
    EXPECT_THROW(gpu::pointwise_generated().plan(pointwise, tuning::parsed(words), 1), Unsupported) << words;
  }
  const auto depthwise = arguments_of_problem(generated_problems<DepthwiseGeometry>(GetParam().dtype).front());
  for (const char* words : {"", "channels=3 columns=4 block_n=1", "channels=2 columns=64 block_n=4 ahead=2"}) {
    EXPECT_THROW(gpu::depthwise_generated().plan(depthwise, tuning::parsed(words), 1), Unsupported) << words;
  }
}

}  // namespace
}  // namespace fusedsc::reference
