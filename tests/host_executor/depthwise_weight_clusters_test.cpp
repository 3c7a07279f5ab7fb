/// The depthwise weight gradients of Hopper GPUs by clusters of all sizes, of which plans choose few by themselves.
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_patches_plan.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_plan.h"
#include "gpu/gpu_under_test.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"

namespace fusedsc::reference {
namespace {

using gpu::hopper::DepthwisePatching;
using gpu::hopper::DepthwiseTiling;

/// A pass as an operator, with the tiling and the cluster that are under test.
template <class Pass, class Tiling>
struct ForcedPass : DepthwiseGeometry {
  static inline Tiling tiling;
  static inline int cluster = 1;

  static Pass pass(const DepthwiseBackwardArguments& a) { return Pass(a, tiling, cluster); }
  static constexpr Operator<DepthwiseBackwardArguments> kBackward{
      [](const DepthwiseBackwardArguments& a, const Execution& execution) { pass(a).run(a, execution); },
      [](const DepthwiseBackwardArguments& a, int) { return pass(a).workspace_bytes(); }};
};
using Tiles = ForcedPass<gpu::hopper::DepthwiseWeightTilesPass, DepthwiseTiling>;
using Patches = ForcedPass<gpu::hopper::DepthwiseWeightPatchesPass, DepthwisePatching>;

class DepthwiseWeightClusters : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    use_memory(gpu_memory());
    use_gpu_wave_size(32);
    align_tensors(true);
  }
  void TearDown() override { align_tensors(false); }

  template <class Pass>
  void verify(const Sizes& x, const Window& window, const decltype(Pass::tiling)& tiling) {
    Pass::tiling = tiling;
    for (const int cluster : {2, 3, 4, 8}) {
      Pass::cluster = cluster;
      for (const bool has_bias : {false, true}) {
        const BackwardCase<Pass> problem{
            GetParam(), {{x, window}}, {.grad_x = false, .grad_bias = has_bias}, Memories::all(Memory::channels_last)};
        SCOPED_TRACE(testing::Message() << problem << "\n  clusters of " << cluster);
        verify_backward(problem);
        if (HasFailure()) return;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Types, DepthwiseWeightClusters, testing::Values(DataType::float16, DataType::bfloat16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(DepthwiseWeightClusters, Tiles) {
  for (const std::int64_t kernel : {3, 5}) {
    // More units than splits, then fewer than a cluster would have.
    verify<Tiles>({7, 24, 13, 20}, centered(kernel), {.products = 2, .box_channels = 32, .rows = 4, .stages = 2});
    verify<Tiles>({1, 16, 10, 30}, centered(kernel), {.products = 2, .box_channels = 32, .rows = 4, .stages = 2});
    verify<Tiles>({5, 72, 9, 12}, centered(kernel, 2), {.products = 2, .box_channels = 32, .rows = 4, .images = 4});
    // Images in parts, where kernels are compiled for so many threads; the last group's channels end within a warp's
    // neighbours.
    const int parts = kernel == 3 ? 2 : 1;
    verify<Tiles>({9, 40, 7, 7}, centered(kernel),
                  {.products = 2, .box_channels = 32, .rows = 4, .images = 4, .image_parts = parts, .stages = 2});
  }
  verify<Tiles>({3, 24, 13, 56}, centered(3, 2),
                {.products = 2, .box_channels = 24, .rows = 4, .image_parts = 2, .stages = 4, .in_segments = true});
}

TEST_P(DepthwiseWeightClusters, Patches) {
  for (const std::int64_t kernel : {3, 5, 7}) {
    const int rows = kernel == 3 ? 4 : 6;
    verify<Patches>({3, 24, 26, 20}, centered(kernel), {.runs = 4, .box_runs = 4, .rows = rows, .stages = 2});
    verify<Patches>({1, 40, 9, 33}, centered(kernel), {.runs = 4, .box_runs = 4, .rows = rows, .stages = 3});
    verify<Patches>({9, 72, 11, 14}, centered(kernel), {.runs = 3, .rows = rows, .image_parts = 2});
  }
}

TEST_P(DepthwiseWeightClusters, NeedNoWorkspace) {
  const BackwardCase<Tiles> problem{
      GetParam(), {{{9, 40, 7, 7}, centered(3)}}, {.grad_x = false}, Memories::all(Memory::channels_last)};
  BackwardTensors<Tiles> tensors(problem);
  Tiles::tiling = {.products = 2, .box_channels = 32, .rows = 4, .images = 4, .image_parts = 2, .stages = 2};
  Tiles::cluster = 2;
  EXPECT_EQ(Tiles::pass(tensors.arguments(problem)).workspace_bytes(), 0U);
}

}  // namespace
}  // namespace fusedsc::reference
