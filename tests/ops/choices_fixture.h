/// A problem of depthwise convolution, and which kernel runs it with the choices that a test has stored.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "fusedsc/tuning/choices.h"
#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/recorder.h"
#include "fusedsc/tuning/store/environment.h"
#include "fusedsc/tuning/store/store.h"
#include "fusedsc/tuning/trace.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"
#include "ops/stored_choices.h"

namespace fusedsc::reference {

using tuning::Entry;
using tuning::Store;

inline constexpr const char* kRole = "depthwise_conv2d.forward";

class ChoicesTest : public testing::Test, protected StoredChoices {
 protected:
  using Case = ForwardCase<DepthwiseGeometry>;
  const Case problem_{
      DataType::float32, {{2, 8, 9, 10}, centered(3)}, {.bias = true}, Memories::all(Memory::contiguous)};

  void SetUp() override {
    align_tensors(true);
    tuning::start_recording();
    ran();
    tuning::stop_recording();
    ASSERT_EQ(tuning::recorded_problems().size(), 1u);
    problem_met_ = tuning::recorded_problems().front();
  }
  void TearDown() override { align_tensors(false); }

  /// The kernel that runs the problem, and why.
  std::string ran() const {
    ForwardTensors<DepthwiseGeometry> tensors(problem_);
    const tuning::Trace trace;
    run(DepthwiseGeometry::kForward, tensors.arguments(problem_));
    const auto chosen = trace.chosen();
    EXPECT_EQ(chosen.size(), 1u);
    return std::string(chosen.at(0).kernel) + ": " + chosen.at(0).reason();
  }

  /// With the config that the kernel would be taken with.
  Entry entry(const char* kernel = "cpu", double microseconds = 12.5) const {
    tuning::Config config;
    for (const std::string& choice : problem_met_->candidates(2)) {
      const tuning::ChoiceWords words = tuning::words_of(choice);
      if (words.kernel == kernel) config = words.parsed_config();
    }
    return {tuning::environment(Device::cpu), kRole, problem_met_->text, tuning::sources_of(kRole), "1",
            {kernel, config, microseconds},   {}};
  }
  /// For the same layer with another number of images, of one digit.
  Entry with_batch(std::int64_t batch, Entry other) const {
    for (const char* tensor : {"x=float32[", "y=float32["}) {
      const std::size_t place = other.problem.find(tensor);
      EXPECT_NE(place, std::string::npos) << other.problem;
      other.problem.replace(place + std::strlen(tensor), 1, std::to_string(batch));
    }
    return other;
  }
  std::filesystem::path file() const {
    const Entry one = entry();
    return Store::of_user()->file_of(one.environment, one.role, one.problem);
  }
  /// As a later process does.
  void store(const Entry& entry) const {
    Store::of_user()->write(entry);
    tuning::forget_choices();
  }

  std::shared_ptr<tuning::Problem> problem_met_;
};

}  // namespace fusedsc::reference
