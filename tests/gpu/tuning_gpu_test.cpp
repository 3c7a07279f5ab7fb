/// Measured choices of GPU kernels: what is recorded of operators whose kernels plan others, what there is to measure,
/// and that what was measured is what runs.
#include <set>

#include "fusedsc/tuning/recorder.h"
#include "fusedsc/tuning/store/environment.h"
#include "gpu/depthwise_forced.h"
#include "ops/sliding_channel_cases.h"
#include "ops/stored_choices.h"

namespace fusedsc::reference {
namespace {

class TuningGpu : public OnGpu, protected StoredChoices {
 protected:
  DepthwiseBackwardCase problem() const {
    return {GetParam().dtype, {{2, 16, 9, 10}, centered(3)}, {}, Memories::all(Memory::channels_last)};
  }

  ForwardCase<SlidingChannelGeometry> sliding_channel() const {
    return {GetParam().dtype, {{2, 64, 6, 6}, 64, 2, 0.5}, {}, Memories::all(Memory::channels_last)};
  }
  BackwardCase<SlidingChannelGeometry> sliding_channel_backward() const {
    return {GetParam().dtype, sliding_channel().geometry, {.grad_bias = false}, Memories::all(Memory::channels_last)};
  }

  /// What `verify` meets, with an entry of its own for each kernel that is planned within another.
  template <class Verify>
  static tuning::Problems recorded_by(const Verify& verify) {
    tuning::start_recording();
    verify();
    for (std::size_t i = 0; i < tuning::recorded_problems().size(); ++i) tuning::recorded_problems()[i]->candidates(16);
    tuning::stop_recording();
    return tuning::recorded_problems();
  }
  tuning::Problems recorded() const {
    return recorded_by([&] { verify_backward(problem()); });
  }

  static std::map<std::string, int> depths_of(const tuning::Problems& problems) {
    std::map<std::string, int> depths;
    for (const auto& problem : problems) depths[problem->role] = problem->depth;
    return depths;
  }

  /// Each candidate for a problem that `verify` met, as if it had been measured to be the fastest. Returns the kernels.
  template <class Verify>
  static std::set<std::string> run_each(const tuning::Problem& met, const Verify& verify) {
    SCOPED_TRACE(met.role);
    const std::vector<std::string> candidates = met.candidates(12);
    EXPECT_EQ(candidates.at(0), met.taken().choice);
    EXPECT_LE(candidates.size(), 12u);
    std::set<std::string> kernels;
    for (const std::string& candidate : candidates) {
      SCOPED_TRACE(candidate);
      const std::size_t slash = candidate.find('/');
      const std::string kernel = candidate.substr(0, slash);
      kernels.insert(kernel);
      const tuning::Config config =
          slash == std::string::npos ? tuning::Config() : tuning::parsed(std::string_view(candidate).substr(slash + 1));
      tuning::adopt({tuning::environment(Device::gpu),
                     met.role,
                     met.text,
                     tuning::sources_of(met.role),
                     "1",
                     {kernel, config, 12.5},
                     {}});
      for (const bool is_read : {false, true}) {
        if (is_read) tuning::forget_choices();
        const tuning::Trace trace;
        verify();
        int times = 0;
        for (const tuning::Chosen& chosen : trace.chosen()) {
          if (chosen.role != std::string_view(met.role)) continue;
          EXPECT_EQ(chosen.choice() + ": " + chosen.reason(), candidate + ": tuned, 12.5 us");
          ++times;
        }
        EXPECT_GT(times, 0);
        if (HasFailure()) return kernels;
      }
    }
    return kernels;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, TuningGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(TuningGpu, RecordsWhatIsPlannedWithin) {
  EXPECT_EQ(depths_of(recorded()), (std::map<std::string, int>{{kBackwardRole, 0}, {kInputRole, 1}, {kWeightRole, 1}}));
}

TEST_P(TuningGpu, RunsWhatWasMeasured) {
  for (const auto& met : recorded()) {
    if (met->role == std::string_view(kBackwardRole)) continue;  // the others run only within one of its kernels
    const Forced separate(kBackwardRole, "gpu_separate");
    EXPECT_GE(run_each(*met, [&] { verify_backward(problem()); }).size(), 3u);
    if (HasFailure()) return;
  }
}

/// Kernels for its windows, those of the pointwise operator that know them, and that operator by itself.
TEST_P(TuningGpu, SlidingChannel) {
  const char *const forward_role = "sliding_channel_conv2d.forward", *const backward_role =
                                                                         "sliding_channel_conv2d.backward";
  const auto forward = [&] { verify_forward(sliding_channel()); };
  const auto backward = [&] { verify_backward(sliding_channel_backward()); };
  const tuning::Problems of_forward = recorded_by(forward);
  EXPECT_EQ(depths_of(of_forward), (std::map<std::string, int>{{forward_role, 0}, {"pointwise_conv2d.forward", 1}}));
  const tuning::Problems of_backward = recorded_by(backward);
  EXPECT_EQ(depths_of(of_backward), (std::map<std::string, int>{{backward_role, 0},
                                                                {"pointwise_conv2d.backward", 1},
                                                                {"pointwise_conv2d.grad_input", 2},
                                                                {"pointwise_conv2d.grad_weight", 2}}));
  const bool has_hopper = GetParam().wave_size == 32 && size_of(GetParam().dtype) == 2;
  for (const auto& met : of_forward) {
    const bool is_within = met->depth > 0;
    const Forced composed(forward_role, is_within ? "composed" : "");
    const std::set<std::string> kernels = run_each(*met, forward);
    EXPECT_GE(kernels.size(), is_within ? 1u : has_hopper ? 4u : 1u);
    if (HasFailure()) return;
  }
  for (const auto& met : of_backward) {
    if (met->depth > 1) continue;
    const bool is_within = met->depth > 0;
    const Forced composed(backward_role, is_within ? "composed" : "");
    const std::set<std::string> kernels = run_each(*met, backward);
    EXPECT_GE(kernels.size(), is_within ? 1u : has_hopper ? 3u : 1u);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fusedsc::reference
