/// Weight gradients of small depthwise problems on GPUs: each way to share them out, and the one that is chosen.
#include "fusedsc/backward/depthwise_direct_launch.h"
#include "fusedsc/common/gpu/depthwise_direct_use.h"
#include "gpu/gpu_under_test.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"

namespace fusedsc::reference {
namespace {

/// The weight gradient by the cut that is under test, as an operator.
struct ForcedCut : DepthwiseGeometry {
  static inline gpu::DirectWeightCut cut;

  static Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a) {
    return gpu::plan_depthwise_direct_weight(a, cut);
  }
  static constexpr Operator<DepthwiseBackwardArguments> kBackward{
      [](const DepthwiseBackwardArguments& a, const Execution& execution) { plan(a).unchecked_run(a, execution); },
      [](const DepthwiseBackwardArguments& a, int) { return plan(a).workspace_bytes; }};
};

template <class Geometry>
BackwardCase<Geometry> weight_gradient(DataType dtype, const Geometry& geometry, const Memories& memories,
                                       bool has_bias = true) {
  return {dtype, geometry, {.grad_x = false, .grad_bias = has_bias}, memories};
}

class DepthwiseDirectWeightGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    gpu::use_depthwise_direct(gpu::DirectUse::wherever_it_can);
  }
  void TearDown() override {
    gpu::use_depthwise_direct(gpu::DirectUse::where_it_suits);
    OnGpu::TearDown();
  }

  static bool suits(const BackwardCase<DepthwiseGeometry>& problem) {
    BackwardTensors<DepthwiseGeometry> tensors(problem);
    return gpu::plan_depthwise_direct_weight(tensors.arguments(problem)).has_value();
  }

  static std::vector<DepthwiseGeometry> geometries() {
    std::vector<DepthwiseGeometry> geometries;
    for (const std::int64_t kernel : {3, 5}) {
      for (const std::int64_t stride : {1, 2, 3}) {
        const auto window = [&](const Padding& padding) {
          return Window{{kernel, kernel}, {stride, stride}, {1, 1}, padding};
        };
        for (const std::int64_t channels : {1, 3, 20, 56}) {
          geometries.push_back({{2, channels, 9, 7 + channels % 5}, centered(kernel, stride)});
        }
        geometries.push_back({{1, 24, 8, 9}, window({5, 4, 3, 6})});    // on four sides
        geometries.push_back({{2, 8, 2, 3}, window({9, 10, 12, 11})});  // windows wholly outside of the image
        geometries.push_back({{3, 16, 1, 1}, window({6, 6, 7, 7})});    // an image of one element
        geometries.push_back({{1, 264, 10, 8}, window({1, 0, 0, 1})});  // sets that are not full
        geometries.push_back({{17, 8, 7, 7}, window({3, 3, 3, 3})});    // many images
      }
      geometries.push_back({{2, 12, 9, 8}, {{kernel, kernel}, {1, 2}, {1, 1}, {3, 2, 1, 3}}});
    }
    return geometries;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseDirectWeightGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

/// Of every kernel, with many and few threads, splits that have work and those that have none.
TEST_P(DepthwiseDirectWeightGpu, Cuts) {
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    for (const std::int64_t kernel : {3, 5}) {
      for (const std::int64_t stride : {1, 2}) {
        const ForcedCut geometry{{{3, 40, 11, 13}, centered(kernel, stride)}};
        const auto problem = weight_gradient(GetParam().dtype, geometry, Memories::all(memory));
        BackwardTensors<ForcedCut> tensors(problem);
        const std::vector<gpu::DirectWeightCut> cuts = gpu::direct_weight_cuts(tensors.arguments(problem));
        ASSERT_FALSE(cuts.empty());
        for (const gpu::DirectWeightCut& cut : cuts) {
          ForcedCut::cut = cut;
          SCOPED_TRACE(testing::Message() << cut.channels << " channels, " << cut.rows << " rows, " << cut.lanes
                                          << " lanes, " << cut.groups << " groups, " << cut.splits << " splits");
          verify_backward(problem);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(DepthwiseDirectWeightGpu, Edges) {
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      for (const bool has_bias : {false, true}) {
        const auto problem = weight_gradient(GetParam().dtype, geometry, Memories::all(memory), has_bias);
        ASSERT_TRUE(suits(problem)) << problem;
        for_each_case(std::vector{problem}, verify_backward<DepthwiseGeometry>);
      }
    }
  }
}

/// Tensors of any strides, which need not be alike, and not aligned either.
TEST_P(DepthwiseDirectWeightGpu, Memories) {
  align_tensors(false);
  Random random(3);
  for (const DepthwiseGeometry& geometry : geometries()) {
    const auto problem = weight_gradient(GetParam().dtype, geometry, Memories::random(random), coin(random));
    for_each_case(std::vector{problem}, verify_backward<DepthwiseGeometry>);
  }
}

/// What is left to other kernels.
TEST_P(DepthwiseDirectWeightGpu, Others) {
  const Sizes x{1, 8, 9, 10};
  const auto suits_case = [&](const Window& window, std::int64_t multiplier, const BackwardSeams& seams) {
    return suits({GetParam().dtype, {x, window, multiplier}, seams, Memories::all(Memory::contiguous)});
  };
  const BackwardSeams plain{.grad_x = false};
  EXPECT_TRUE(suits_case(centered(3), 1, plain));
  EXPECT_FALSE(suits_case(centered(3), 1, {.prologue = true, .grad_x = false}));
  EXPECT_FALSE(suits_case(centered(3), 1, {.gradient_prologue = true, .grad_x = false}));
  EXPECT_FALSE(suits_case(centered(4), 1, plain));
  EXPECT_FALSE(suits_case(centered(7), 1, plain));
  EXPECT_FALSE(suits_case({{3, 5}, {1, 1}, {1, 1}, {2, 2, 1, 1}}, 1, plain));
  EXPECT_FALSE(suits_case({{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}, 1, plain));
  EXPECT_FALSE(suits_case(centered(3), 2, plain));
}

TEST_P(DepthwiseDirectWeightGpu, SmallProblems) {
  gpu::use_depthwise_direct(gpu::DirectUse::where_it_suits);
  const auto problem_of = [](std::int64_t images) {
    return weight_gradient(GetParam().dtype, DepthwiseGeometry{{images, 40, 7, 7}, centered(3)},
                           Memories::all(Memory::channels_last));
  };
  EXPECT_TRUE(suits(problem_of(1)));
  EXPECT_FALSE(suits(problem_of(40 * gpu_multiprocessors())));
}

/// Both gradients of a small problem are kernels of their own, of others one on GPUs that have that.
TEST_P(DepthwiseDirectWeightGpu, BothGradients) {
  gpu::use_depthwise_direct(gpu::DirectUse::where_it_suits);
  const auto problem_of = [](std::int64_t images) {
    return BackwardCase<DepthwiseGeometry>{GetParam().dtype,
                                           {{images, 40, 7, 7}, centered(3)},
                                           {.grad_bias = false},
                                           Memories::all(Memory::channels_last)};
  };
  const auto small = problem_of(gpu_multiprocessors() / 4 + 1), large = problem_of(2 * gpu_multiprocessors());
  BackwardTensors<DepthwiseGeometry> of_small(small), of_large(large);
  EXPECT_TRUE(gpu::suits_depthwise_direct_gradients(of_small.arguments(small)));
  EXPECT_FALSE(gpu::suits_depthwise_direct_gradients(of_large.arguments(large)));
  for (const Candidate& candidate : explain_depthwise_conv2d_backward(of_small.arguments(small))) {
    EXPECT_EQ(candidate.taken, candidate.implementation == "gpu");
  }
  verify_backward(small);
}

}  // namespace
}  // namespace fusedsc::reference
