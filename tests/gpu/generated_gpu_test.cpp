/// Generated kernels against the double-precision reference: on the host executor those that were compiled with this
/// test, on a GPU those that are compiled at run time.
#include "gpu/generated_samples.h"

#include <optional>
#include <string_view>

#include "fusedsc/tuning/compiler/allowed.h"
#include "fusedsc/tuning/compiler/compiler.h"
#include "gpu/forced.h"

namespace fusedsc::reference {
namespace {

template <class Geometry>
void verify(const ForwardCase<Geometry>& problem) {
  verify_forward(problem);
}
template <class Geometry>
void verify(const BackwardCase<Geometry>& problem) {
  verify_backward(problem);
}

class GeneratedGpu : public OnGpu {
 protected:
  /// Each by force.
  template <class Samples>
  static void verify_all(const Samples& samples) {
    std::size_t number = 0, runs = 0;
    for (const auto& problem : samples.problems) {
      SCOPED_TRACE(testing::PrintToString(problem));
      const auto arguments = arguments_of_problem(problem);
      std::optional<Forced> separate;
      if (samples.separate != nullptr) separate.emplace(samples.separate, "gpu_separate");
      for (const tuning::Config& config : sampled(samples, arguments, number++)) {
        if (is_left_out(samples.kernel, arguments, config)) continue;
        verify_by(samples.role, "generated/" + tuning::printed(config), [&] { verify(problem); });
        ++runs;
        ran_.push_back(config);
        if (testing::Test::HasFailure()) return;
      }
    }
    EXPECT_GE(runs, number) << "problems without a kernel";
  }

  /// Of kernels by fragments the different ones are among what ran: weights that stay and that come in stages, warps
  /// that share k, warps side by side along channels, blocks that are not of 128 threads.
  void expect_all_kinds() const {
    if (testing::Test::HasFailure()) return;
    int stays = 0, streams = 0, shares = 0, beside = 0, other_sizes = 0;
    for (const tuning::Config& config : ran_) {
      const tuning::FragmentTiling tiling = tuning::fragment_tiling_of(config);
      ++(tiling.depth > 0 ? streams : stays);
      shares += tiling.parts > 1;
      beside += tiling.repeat_c > 1;
      other_sizes += tiling.threads() != 128;
    }
    if (GetParam().wave_size != 32) shares = 1;  // few do where a wave has 64 threads: no packed rows
    for (const int count : {stays, streams, shares, beside, other_sizes}) {
      EXPECT_GT(count, 0) << stays << ", " << streams << ", " << shares << ", " << beside << ", " << other_sizes;
    }
  }

  void SetUp() override {
    OnGpu::SetUp();
    ran_.clear();
  }

 private:
  inline static tuning::Configs ran_;

  /// How many registers a kernel has is known once it is compiled: one that spills is not measured, either.
  template <class Arguments>
  static bool is_left_out(const tuning::Kernel<Arguments>& kernel, const Arguments& arguments,
                          const tuning::Config& config) {
    const tuning::CompilingAllowed compiling;
    try {
      kernel.plan(arguments, config, 1);
    } catch (const tuning::CompileError& error) {
      if (std::string_view(error.what()).find("it spills") == std::string_view::npos) throw;
      return true;
    }
    return false;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, GeneratedGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(GeneratedGpu, Pointwise) { verify_all(pointwise_samples(GetParam().dtype)); }
TEST_P(GeneratedGpu, PointwiseInput) { verify_all(pointwise_input_samples(GetParam().dtype)); }
TEST_P(GeneratedGpu, PointwiseWeight) { verify_all(pointwise_weight_samples(GetParam().dtype)); }
/// Nothing where the GPU has no such products: of kernels that are compiled with the library, too, there are none then.
template <class Samples, class Arguments>
std::string why_no_fragments_of(const Samples& samples, const tuning::Kernel<Arguments>& compiled) {
  if (samples.problems.empty()) return "no products of doubles by fragments";
  return compiled.unsupported(arguments_of_problem(samples.problems.front()));
}

TEST_P(GeneratedGpu, PointwiseFragments) {
  const auto samples = pointwise_fragments_samples(GetParam().dtype);
  const std::string why_not = why_no_fragments_of(samples, gpu::pointwise_fragments());
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  verify_all(samples);
  expect_all_kinds();
}
TEST_P(GeneratedGpu, PointwiseInputFragments) {
  const auto samples = pointwise_input_fragments_samples(GetParam().dtype);
  const std::string why_not = why_no_fragments_of(samples, pointwise_backward_fragments());
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  verify_all(samples);
  expect_all_kinds();
}
TEST_P(GeneratedGpu, Depthwise) { verify_all(depthwise_samples(GetParam().dtype)); }
TEST_P(GeneratedGpu, DepthwiseInput) { verify_all(depthwise_input_samples(GetParam().dtype)); }
TEST_P(GeneratedGpu, DepthwiseWeight) { verify_all(depthwise_weight_samples(GetParam().dtype)); }

/// A config that does not fit is said, and so is one of another kind.
template <class Samples>
void expect_refused(const Samples& samples, std::initializer_list<const char*> configs) {
  const auto arguments = arguments_of_problem(samples.problems.front());
  for (const char* words : configs) {
    EXPECT_THROW(samples.kernel.plan(arguments, tuning::parsed(words), 1), Unsupported) << words;
    EXPECT_THROW(samples.kernel.source(arguments, tuning::parsed(words)), Unsupported) << words;
  }
}

TEST_P(GeneratedGpu, WrongConfigs) {
  const DataType dtype = GetParam().dtype;
  expect_refused(pointwise_samples(dtype),
                 {"", "rows=7 columns=64 depth=64 groups=1 block_n=1", "wave_w=8 group_c=8",
                  "rows=60 columns=64 groups=1 stages=4 repeat_w=4 repeat_c=1 block_n=1",
                  "wave_w=64 wave_c=256 wave_n=16 repeat_w=4 repeat_c=4 block_n=2 group_c=32"});
  const auto no_tile = {"", "rows=7 columns=64 depth=64 groups=1 block_n=1", "rows=64 columns=64 depth=32 groups=1",
                        "rows=64 columns=64 depth=32 groups=1 block_n=9"};
  expect_refused(pointwise_input_samples(dtype), no_tile);
  expect_refused(pointwise_weight_samples(dtype), no_tile);
  const auto wrong = {"", "channels=3 columns=4 block_n=1", "channels=2 columns=64 block_n=4 ahead=2"};
  expect_refused(depthwise_samples(dtype), wrong);
  expect_refused(depthwise_input_samples(dtype), wrong);
  expect_refused(depthwise_weight_samples(dtype), wrong);
}

}  // namespace
}  // namespace fusedsc::reference
