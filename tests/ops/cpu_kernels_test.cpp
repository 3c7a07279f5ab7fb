/// The registry of CPU kernels: every kernel with every config, by force, on problems that fit it, compared with the
/// reference; that it was they who ran; that explain, the trace and the plan say the same; and what force says when it
/// cannot.
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

#include "fusedsc/runtime/cpu_targets.h"
#include "fusedsc/tuning/recorder.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forced.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

/// Every type on the best instruction set; on the others float32.
std::vector<std::pair<std::string, DataType>> targets_and_types() {
  std::vector<std::pair<std::string, DataType>> all;
  for (const std::string& target : cpu_targets()) {
    for (const DataType dtype : kDataTypes) {
      if (target == cpu_targets().front() || dtype == DataType::float32) all.emplace_back(target, dtype);
    }
  }
  return all;
}

class KernelsCpu : public testing::TestWithParam<std::pair<std::string, DataType>> {
 protected:
  void SetUp() override { use_cpu_target(GetParam().first); }
  void TearDown() override { use_cpu_target(""); }

  static DataType dtype() { return GetParam().second; }

  /// What the registry has for a problem.
  template <class Arguments>
  static std::shared_ptr<tuning::Problem> problem_of(const Operator<Arguments>& op, const Arguments& arguments,
                                                     const char* role) {
    tuning::start_recording();
    op.workspace_bytes(arguments, 1);
    tuning::stop_recording();
    for (const std::shared_ptr<tuning::Problem>& problem : tuning::recorded_problems()) {
      if (std::string_view(problem->role) == role) return problem;
    }
    throw std::logic_error(std::string("nothing was planned as ") + role);
  }

  /// Runs `verify` by each kernel with each config, and counts these.
  template <class Arguments, class Verify>
  void verify_all(const Operator<Arguments>& op, const Arguments& arguments, const char* role, const Verify& verify) {
    constexpr std::size_t kMostConfigs = 16;
    std::map<std::string, std::set<std::string>> configs;
    const auto problem = problem_of(op, arguments, role);
    for (const std::string& choice : problem->choices()) {
      const std::string kernel = choice.substr(0, choice.find('/'));
      EXPECT_TRUE(configs[kernel].insert(choice).second) << choice << " is there twice";
      verify_by(role, choice, verify);
      if (HasFailure()) return;
    }
    for (const auto& [kernel, own] : configs) {
      EXPECT_LE(own.size(), kMostConfigs) << kernel;
      most_[kernel] = std::max(most_[kernel], own.size());
    }
    expect_prior(*problem, configs);
  }

  /// Without force one of them runs; by force without a config the same as the prior's, if that takes this kernel.
  static void expect_prior(const tuning::Problem& problem,
                           const std::map<std::string, std::set<std::string>>& configs) {
    const tuning::Taken prior = problem.taken();
    EXPECT_STREQ(prior.why, "prior");
    int times = 0;
    for (const auto& [kernel, own] : configs) {
      const Forced forced(problem.role, kernel);
      const std::string choice = problem.taken().choice;
      EXPECT_TRUE(own.contains(choice)) << choice;
      times += choice == prior.choice;
    }
    EXPECT_EQ(times, 1) << prior.choice;
  }

  template <class Geometry>
  void verify_forward_by_all(const std::vector<Geometry>& geometries, const char* role) {
    using enum ForwardFusion::Output;
    const ForwardFusion fusion[] = {
        {},
        {.prologue = true, .activation = Activation::relu6, .output = statistics},
        {.bias = true, .output = epilogue, .epilogue_activation = Activation::relu, .residual = true},
        {.bias = true, .output = statistics},
    };
    std::size_t number = 0;
    for (const Geometry& geometry : geometries) {
      for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
        const ForwardCase<Geometry> problem{dtype(), geometry, fusion[number++ % std::size(fusion)],
                                            Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        ForwardTensors<Geometry> tensors(problem);
        verify_all(Geometry::kForward, tensors.arguments(problem), role, [&] { verify_forward(problem); });
        if (HasFailure()) return;
      }
      number += number / 2 % 3;
    }
  }

  template <class Geometry>
  void verify_backward_by_all(const std::vector<Geometry>& geometries, const char* role) {
    const BackwardFusion fusion[] = {
        {},
        {.prologue = true,
         .activation = Activation::relu6,
         .gradient_prologue = true,
         .sums = true,
         .grad_bias = false},
        {.grad_x = false},
        {.grad_add = true, .grad_weight = false, .grad_bias = false},
    };
    std::size_t number = 0;
    for (const Geometry& geometry : geometries) {
      for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
        const BackwardCase<Geometry> problem{dtype(), geometry, fusion[number++ % std::size(fusion)],
                                             Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        BackwardTensors<Geometry> tensors(problem);
        verify_all(Geometry::kBackward, tensors.arguments(problem), role, [&] { verify_backward(problem); });
        if (HasFailure()) return;
      }
      number += number / 2 % 3;
    }
  }

  /// These are all that ran, and each had a problem with something to choose, but for what others compose.
  void expect_ran_all(const std::set<std::string>& kernels) const {
    std::set<std::string> ran;
    for (const auto& [kernel, configs] : most_) {
      ran.insert(kernel);
      EXPECT_GT(configs, kernel == "composed" ? 0u : 3u) << kernel;
    }
    EXPECT_EQ(ran, kernels);
  }

  static std::vector<DepthwiseGeometry> depthwise() {
    return {{{2, 40, 11, 12}, centered(3)},
            {{1, 72, 13, 33}, centered(3)},  // more channels than a block of transposed rows has
            {{1, 5, 66, 62}, centered(3)},   // planes of several chunks
            {{5, 17, 14, 15}, centered(3, 2)},
            {{1, 3, 67, 60}, centered(3, 2)},
            {{3, 24, 10, 16}, centered(5)},
            {{1, 9, 61, 50}, centered(5, 2)},
            {{9, 48, 7, 7}, centered(3)},
            {{2, 6, 11, 13}, {{2, 3}, {3, 1}, {1, 1}, {1, 1, 0, 1}}, 2}};
  }

  static std::vector<PointwiseGeometry> pointwise() {
    return {
        {{2, 72, 14, 14}, 80}, {{3, 136, 7, 7}, 72}, {{1, 210, 5, 13}, 200},  // depth that is cut, of several strips
        {{1, 7, 61, 64}, 10},                                                 // positions that are cut
        {{2, 33, 5, 7}, 35},   {{5, 64, 1, 1}, 24},  {{2, 24, 9, 13}, 36, 3}};
  }

  static std::vector<SlidingChannelGeometry> sliding_channel() {
    return {{{2, 24, 14, 14}, 48, 2, 0.5}, {{1, 7, 61, 64}, 16, 1, 0.75}, {{3, 140, 7, 7}, 72, 2, 0.33}};
  }

 private:
  std::map<std::string, std::size_t> most_;  ///< configs that a kernel had for a problem
};
INSTANTIATE_TEST_SUITE_P(Targets, KernelsCpu, testing::ValuesIn(targets_and_types()),
                         [](const auto& info) { return info.param.first + '_' + name_of(info.param.second); });

TEST_P(KernelsCpu, Depthwise) {
  verify_forward_by_all(depthwise(), "depthwise_conv2d.forward");
  expect_ran_all({"cpu", "cpu_planes"});
}

TEST_P(KernelsCpu, DepthwiseGradients) {
  verify_backward_by_all(depthwise(), "depthwise_conv2d.backward");
  expect_ran_all({"cpu", "cpu_planes"});
}

TEST_P(KernelsCpu, Pointwise) {
  verify_forward_by_all(pointwise(), "pointwise_conv2d.forward");
  expect_ran_all({"cpu"});
}

TEST_P(KernelsCpu, PointwiseGradients) {
  verify_backward_by_all(pointwise(), "pointwise_conv2d.backward");
  expect_ran_all({"cpu"});
}

TEST_P(KernelsCpu, SlidingChannel) {
  verify_forward_by_all(sliding_channel(), "sliding_channel_conv2d.forward");
  expect_ran_all({"cpu_windows", "composed"});
}

TEST_P(KernelsCpu, SlidingChannelGradients) {
  verify_backward_by_all(sliding_channel(), "sliding_channel_conv2d.backward");
  expect_ran_all({"cpu_windows", "composed"});
}

/// Kernel and config that explain prints are those that run without force.
TEST_P(KernelsCpu, ExplainSaysWhatRuns) {
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const ForwardCase<DepthwiseGeometry> problem{dtype(), depthwise().front(), {}, Memories::all(memory)};
    ForwardTensors<DepthwiseGeometry> tensors(problem);
    const DepthwiseArguments arguments = tensors.arguments(problem);
    const std::string choice = expect_explained("depthwise_conv2d.forward", explain_depthwise_conv2d(arguments, 1),
                                                [&] { run(DepthwiseGeometry::kForward, arguments); });
    EXPECT_NE(choice.find('/'), std::string::npos) << choice;
    verify_by("depthwise_conv2d.forward", choice, [&] { verify_forward(problem); });
  }
}

/// A config of another problem, or of none, is said to be one; nothing else runs in its place, and the next call works.
TEST_P(KernelsCpu, ForceSaysWhatItCannot) {
  const ForwardCase<PointwiseGeometry> problem{dtype(), {{1, 16, 8, 8}, 24}, {}, Memories::all(Memory::channels_last)};
  ForwardTensors<PointwiseGeometry> tensors(problem);
  const PointwiseArguments arguments = tensors.arguments(problem);
  for (const char* choice : {"cpu/rows=448 depth=96 vectors=99", "cpu/rows=0", "cpu/rows=3",
                             "cpu/columns=896 depth=96 vectors=4", "cpu/rows=448 depth=96 vectors=4 stages=2"}) {
    const Forced forced("pointwise_conv2d.forward", choice);
    try {
      run(PointwiseGeometry::kForward, arguments);
      ADD_FAILURE() << choice << " ran";
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find("none of its configs for this problem: rows="), std::string::npos)
          << error.what();
    }
  }
  verify_forward(problem);
}

}  // namespace
}  // namespace fusedsc::reference
