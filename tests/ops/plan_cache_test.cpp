/// Plans that PyTorch's operators keep: what shares a plan, what does not, and how many are kept.
#include "plan_cache.h"

#include <functional>
#include <thread>

#include "fusedsc/tuning/force.h"
#include "fusedsc/tuning/trace.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {
namespace {

using aten::PlanCache;
using Cache = PlanCache<DepthwiseArguments>;

ForwardCase<DepthwiseGeometry> case_of(const Sizes& x) {
  return {DataType::float32, {x, centered(3)}, {.bias = true}, Memories::all(Memory::contiguous)};
}

class PlanCacheTest : public testing::Test {
 protected:
  void SetUp() override { align_tensors(true); }
  void TearDown() override { align_tensors(false); }

  const Plan<DepthwiseArguments>* plan(const DepthwiseArguments& arguments, int threads = 1, int device = 0) {
    return cache_.plan(plan_depthwise_conv2d, arguments, threads, device).get();
  }

  Cache cache_;
};

TEST_F(PlanCacheTest, SameProblemElsewhere) {
  ForwardTensors<DepthwiseGeometry> first(case_of({2, 8, 9, 10})), second(case_of({2, 8, 9, 10}));
  const auto problem = case_of({2, 8, 9, 10});
  EXPECT_EQ(plan(first.arguments(problem)), plan(second.arguments(problem)));
  EXPECT_EQ(cache_.size(), 1u);
}

/// Whatever a plan may depend on makes another problem.
TEST_F(PlanCacheTest, OtherProblems) {
  const auto problem = case_of({2, 8, 9, 10});
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  Channels vector(DataType::float32, 8);
  Tensor residual(DataType::float32, tensors.y.sizes(), Memory::contiguous);
  const DepthwiseArguments usual = tensors.arguments(problem);
  const auto shift = [](auto& view, std::ptrdiff_t bytes) {
    view.data = reinterpret_cast<decltype(view.data)>(reinterpret_cast<std::uintptr_t>(view.data) + bytes);
  };
  const std::function<void(DepthwiseArguments&)> changes[] = {
      [](auto&) {},
      [&](auto& a) { shift(a.x, 4); },
      [&](auto& a) { shift(a.y, 16); },
      [&](auto& a) { shift(a.weight, 8); },
      [](auto& a) { a.bias = {}; },
      [](auto& a) { a.x.strides[0] += 4; },
      [](auto& a) { a.y.strides[0] += 4; },
      [](auto& a) { --a.x.sizes[0], --a.y.sizes[0]; },
      [](auto& a) { a.window.padding.left = 2, a.window.padding.right = 0; },
      [](auto& a) { a.prologue.activation = Activation::relu; },
      [&](auto& a) { a.prologue.scale = vector; },
      [&](auto& a) { a.prologue.shift = vector; },
      [](auto& a) { a.epilogue.activation = Activation::relu; },
      [](auto& a) { a.epilogue.activation = Activation::silu; },
      [&](auto& a) { a.epilogue.residual = residual; },
      [&](auto& a) { a.statistics.mean = a.statistics.m2 = vector; },
  };
  std::vector<const Plan<DepthwiseArguments>*> plans;
  for (const auto& change : changes) {
    DepthwiseArguments other = usual;
    change(other);
    plans.push_back(plan(other));
    EXPECT_EQ(plan(other), plans.back());
  }
  plans.push_back(plan(usual, 2));
  plans.push_back(plan(usual, 1, 1));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(plans[i], plans[j]) << i << " and " << j;
  }
  EXPECT_EQ(cache_.size(), plans.size());
}

TEST_F(PlanCacheTest, KeepsWhatWasUsedLast) {
  const auto problem = case_of({1, 4, 5, 6});
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  const DepthwiseArguments usual = tensors.arguments(problem);
  const auto with_stride = [&](std::size_t i) {
    DepthwiseArguments other = usual;
    other.x.strides[0] = 1000 + static_cast<std::int64_t>(i);  // of one image: of no consequence
    return other;
  };
  const auto* const first = plan(usual);
  const auto second =
      cache_.plan(plan_depthwise_conv2d, with_stride(0), 1, 0);  // kept alive: its address stays its own
  for (std::size_t i = 1; i < Cache::kMostPlans + 3; ++i) {
    plan(with_stride(i));
    ASSERT_EQ(plan(usual), first);
  }
  EXPECT_EQ(cache_.size(), Cache::kMostPlans);
  EXPECT_NE(plan(with_stride(0)), second.get()) << "it was used longest ago";
}

TEST_F(PlanCacheTest, ForceMakesAllAnew) {
  constexpr const char* kRole = "depthwise_conv2d.forward";
  const auto problem = case_of({2, 8, 9, 10});
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  const DepthwiseArguments arguments = tensors.arguments(problem);
  const auto kernel_of = [&] {
    const auto plan = cache_.plan(plan_depthwise_conv2d, arguments, 1, 0);
    const Workspace workspace(plan->workspace_bytes, 0xff);
    const tuning::Trace trace;
    plan->run(arguments, {.parallel_for = {}, .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
    return std::string(trace.chosen().at(0).kernel);
  };
  EXPECT_EQ(kernel_of(), "cpu_planes");
  const std::string before = tuning::force(kRole, "cpu");
  EXPECT_EQ(kernel_of(), "cpu");
  tuning::force(kRole, before);
  EXPECT_EQ(kernel_of(), "cpu_planes");
}

/// Many threads with the same problems and others: each gets a plan that computes what it asked for.
TEST_F(PlanCacheTest, ManyThreads) {
  const auto work = [&](int thread) {
    for (int i = 0; i < 40; ++i) {
      const auto problem = case_of({1 + i % 3, 4, 5 + i % 4, 6 + thread % 2});
      ForwardTensors<DepthwiseGeometry> tensors(problem);
      const DepthwiseArguments arguments = tensors.arguments(problem);
      const auto plan = cache_.plan(plan_depthwise_conv2d, arguments, 1, 0);
      const Workspace workspace(plan->workspace_bytes, 0xff);
      plan->run(arguments, {.parallel_for = {}, .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
      EXPECT_TRUE(matches(tensors.y, tensors.output(problem, tensors.raw_output(problem))));
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache_.size(), 24u);
}

}  // namespace
}  // namespace fusedsc::reference
