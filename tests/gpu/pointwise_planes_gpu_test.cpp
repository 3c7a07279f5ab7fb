/// Pointwise convolution of contiguous tensors, which Hopper GPUs have kernels of their own for, by force: planes that
/// begin at multiples of 16 bytes, or only several together; sizes below, at and above those of tiles.
#include <optional>

#include "gpu/pointwise_forced.h"

namespace fusedsc::reference {
namespace {

class PointwisePlanesGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (GetParam().dtype == DataType::float64) GTEST_SKIP() << "for types that tensor cores take";
    if (!has_hopper_pointwise(GetParam().dtype)) GTEST_SKIP() << "the GPU has no such kernels";
  }

  static std::vector<PointwiseGeometry> geometries() {
    std::vector<PointwiseGeometry> geometries = {
        {{2, 24, 8, 8}, 40},   {{1, 16, 8, 17}, 24},  {{3, 72, 12, 14}, 144},  // whole runs in each plane,
        {{2, 8, 20, 20}, 8},   {{1, 200, 4, 8}, 208},                          // of several tiles, of a part of one,
        {{2, 72, 14, 14}, 80}, {{1, 144, 6, 6}, 40},  {{1, 40, 9, 22}, 96},    // of 4 and of 2 planes,
        {{3, 136, 7, 7}, 72},  {{2, 24, 9, 11}, 328}, {{1, 264, 5, 13}, 104},  // of 8 planes (float32: of 4),
        {{66, 16, 5, 5}, 16},  {{1, 1152, 7, 7}, 24}, {{7, 32, 16, 16}, 16},   // more tiles than there are groups
        {{2, 24, 17, 17}, 40}, {{1, 72, 19, 19}, 80}, {{2, 16, 15, 18}, 24},   // several tiles of such planes
        {{3, 136, 17, 17}, 8}, {{1, 36, 17, 19}, 20}, {{2, 33, 8, 8}, 35},     // and a weight without runs
        {{1, 24, 7, 7}, 1160}, {{1, 584, 4, 8}, 32},  {{1, 32, 4, 8}, 584},    // few blocks that have much of k
        {{3, 160, 7, 7}, 192},                                                 // several images of them
        {{1, 40, 32, 32}, 24}, {{1, 24, 32, 32}, 40},                          // one round of seven groups
    };
    for (PointwiseGeometry& geometry : geometries) geometry.tf32 = GetParam().dtype == DataType::float32;
    return geometries;
  }

  static const Memories contiguous() { return Memories::all(Memory::contiguous); }

  /// By either of the forward kernels, and by the input gradient's.
  static void verify_by_each(const std::vector<PointwiseForwardCase>& cases) {
    const Names names = {"hopper_planes_resident", "hopper_planes_sliced_k"};
    expect_all_ran(verify_pointwise_forward(cases, names, names.size()), names);
  }
  static void verify_by_planes(const std::vector<PointwiseBackwardCase>& cases) {
    std::size_t runs = 0;
    for_each_case(cases, [&](const PointwiseBackwardCase& problem) {
      PointwiseBackwardCase alone = problem;
      alone.fusion.grad_weight = alone.fusion.grad_bias = false;
      BackwardTensors<PointwiseGeometry> tensors(alone);
      if (able(pointwise_backward_kernels(), tensors.arguments(alone), {"hopper_planes"}).empty()) {
        return verify_backward(problem);  // too few positions, or no room for all that is fused
      }
      std::optional<Forced> separate;
      if (problem.fusion.grad_weight) separate.emplace(kPointwiseBackward, "gpu_separate");
      verify_by(problem.fusion.grad_weight ? kPointwiseInput : kPointwiseBackward, "hopper_planes",
                [&] { verify_backward(problem); });
      ++runs;
    });
    EXPECT_GT(runs, cases.size() / 2);
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwisePlanesGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwisePlanesGpu, Forward) {
  std::vector<PointwiseForwardCase> cases;
  for (const PointwiseGeometry& geometry : geometries()) {
    cases.push_back({GetParam().dtype, geometry, {}, contiguous()});
  }
  verify_by_each(cases);
}

TEST_P(PointwisePlanesGpu, ForwardFusion) {
  using Output = ForwardFusion::Output;
  const ForwardFusion fusion[] = {
      {.bias = true},
      {.output = Output::statistics},
      {.prologue = true, .activation = Activation::relu6, .output = Output::statistics},
      {.prologue = true, .activation = Activation::silu},
      {.bias = true, .output = Output::epilogue, .epilogue_activation = Activation::relu6, .residual = true},
      {.prologue = true, .activation = Activation::relu, .output = Output::epilogue, .residual = true},
  };
  std::vector<PointwiseForwardCase> cases;
  for (const PointwiseGeometry& geometry : geometries()) {
    cases.push_back({GetParam().dtype, geometry, fusion[cases.size() % std::size(fusion)], contiguous()});
  }
  verify_by_each(cases);
}

TEST_P(PointwisePlanesGpu, InputGradient) {
  const BackwardFusion fusion{.grad_weight = false, .grad_bias = false};
  std::vector<PointwiseBackwardCase> cases;
  for (const PointwiseGeometry& geometry : geometries()) {
    cases.push_back({GetParam().dtype, geometry, fusion, contiguous()});
  }
  verify_by_planes(cases);
}

TEST_P(PointwisePlanesGpu, InputGradientFusion) {
  const BackwardFusion fusion[] = {
      {.grad_add = true, .grad_weight = false, .grad_bias = false},
      {.gradient_prologue = true, .grad_weight = false, .grad_bias = false},
      {.prologue = true, .activation = Activation::relu6, .sums = true, .grad_weight = false, .grad_bias = false},
      {.prologue = true, .activation = Activation::hardswish, .gradient_prologue = true, .sums = true},
      {.prologue = true, .activation = Activation::relu, .gradient_prologue = true, .grad_add = true},
  };
  std::vector<PointwiseBackwardCase> cases;
  for (const PointwiseGeometry& geometry : geometries()) {
    cases.push_back({GetParam().dtype, geometry, fusion[cases.size() % std::size(fusion)], contiguous()});
  }
  verify_by_planes(cases);
}

/// Tiles that go round the blocks before they go round a block's groups: several for each block of a large GPU, and
/// fewer than blocks have groups.
TEST_P(PointwisePlanesGpu, TilesRoundTheBlocks) {
  const PointwiseGeometry geometries[] = {{{5, 24, 64, 64}, 24}, {{2, 136, 8, 8}, 24}};
  const BackwardFusion sums{
      .prologue = true, .activation = Activation::relu6, .sums = true, .grad_weight = false, .grad_bias = false};
  for (PointwiseGeometry geometry : geometries) {
    geometry.tf32 = GetParam().dtype == DataType::float32;
    const ForwardFusion statistics{.output = ForwardFusion::Output::statistics};
    verify_by_each(
        {{GetParam().dtype, geometry, {}, contiguous()}, {GetParam().dtype, geometry, statistics, contiguous()}});
    verify_by_planes({{GetParam().dtype, geometry, sums, contiguous()}});
  }
}

/// Shared memory has room for the weight beside the tensors of all that is fused, whichever way the weight comes.
TEST_P(PointwisePlanesGpu, HasRoomForAllFusion) {
  if (size_of(GetParam().dtype) != 2) GTEST_SKIP() << "16-bit types only";
  const BackwardFusion fusion{.prologue = true,
                              .activation = Activation::relu6,
                              .gradient_prologue = true,
                              .grad_add = true,
                              .grad_weight = false,
                              .grad_bias = false};
  const BackwardCase<PointwiseGeometry> problem{GetParam().dtype, {{1, 40, 64, 64}, 240}, fusion, contiguous()};
  BackwardTensors<PointwiseGeometry> tensors(problem);
  for (const Candidate& candidate : explain_pointwise_conv2d_backward(tensors.arguments(problem))) {
    if (candidate.implementation != "hopper_planes") continue;
    EXPECT_TRUE(candidate.taken || candidate.why_not == "the GPU is no Hopper") << candidate.why_not;
  }
}

}  // namespace
}  // namespace fusedsc::reference
