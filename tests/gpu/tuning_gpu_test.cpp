/// Measured choices of GPU kernels: what is recorded of an operator whose kernels have roles of their own, what there
/// is to measure, and that what was measured is what runs.
#include <set>

#include "fusedsc/tuning/environment.h"
#include "fusedsc/tuning/recorder.h"
#include "gpu/depthwise_forced.h"
#include "ops/stored_choices.h"

namespace fusedsc::reference {
namespace {

class TuningGpu : public OnGpu, protected StoredChoices {
 protected:
  DepthwiseBackwardCase problem() const {
    return {GetParam().dtype, {{2, 16, 9, 10}, centered(3)}, {}, Memories::all(Memory::channels_last)};
  }

  /// What the problem meets, with an entry of its own for each kernel that is planned within another.
  tuning::Problems recorded() const {
    tuning::start_recording();
    verify_backward(problem());
    for (const auto& one : tuning::recorded_problems()) one->candidates(16);
    tuning::stop_recording();
    return tuning::recorded_problems();
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, TuningGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(TuningGpu, RecordsWhatIsPlannedWithin) {
  std::map<std::string, int> depths;
  for (const auto& problem : recorded()) depths[problem->role] = problem->depth;
  EXPECT_EQ(depths, (std::map<std::string, int>{{kBackwardRole, 0}, {kInputRole, 1}, {kWeightRole, 1}}));
}

/// Each candidate of each role, as if it had been measured to be the fastest.
TEST_P(TuningGpu, RunsWhatWasMeasured) {
  for (const auto& met : recorded()) {
    if (met->role == std::string_view(kBackwardRole)) continue;  // the others run only within one of its kernels
    SCOPED_TRACE(met->role);
    const Forced separate(kBackwardRole, "gpu_separate");
    const std::vector<std::string> candidates = met->candidates(12);
    EXPECT_EQ(candidates.at(0), met->taken().choice);
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
                     met->role,
                     met->text,
                     tuning::sources_of(met->role),
                     "1",
                     {kernel, config, 12.5},
                     {}});
      for (const bool is_read : {false, true}) {
        if (is_read) tuning::forget_choices();
        const tuning::Trace trace;
        verify_backward(problem());
        int times = 0;
        for (const tuning::Chosen& chosen : trace.chosen()) {
          if (chosen.role != std::string_view(met->role)) continue;
          EXPECT_EQ(chosen.choice() + ": " + chosen.reason(), candidate + ": tuned, 12.5 us");
          ++times;
        }
        EXPECT_GT(times, 0);
        if (HasFailure()) return;
      }
    }
    EXPECT_GE(kernels.size(), 3u);
  }
}

}  // namespace
}  // namespace fusedsc::reference
