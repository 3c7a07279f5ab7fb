/// Pointwise weight gradients that Hopper GPUs compute by sliced-K over warps or by warp groups, by force: float32 with
/// TF32 in either layout, contiguous 16-bit tensors, and channels_last ones of which one has few channels.
#include <optional>

#include "gpu/pointwise_forced.h"

namespace fusedsc::reference {
namespace {

using Case = PointwiseBackwardCase;

class PointwiseWeightGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (GetParam().dtype == DataType::float64) GTEST_SKIP() << "not for float64";
  }

  /// By each of the Hopper GPU's kernels that can, or by what is chosen where there is none. Returns which ran.
  static std::vector<std::string> verify_weight(const Case& problem) {
    Case weight_alone = problem;
    weight_alone.fusion.grad_x = weight_alone.fusion.sums = weight_alone.fusion.grad_add = false;
    BackwardTensors<PointwiseGeometry> tensors(weight_alone);
    std::vector<std::string> ran;
    Names names = {"hopper", "hopper_warp_sliced_k", "hopper_narrow"};
    if (!problem.fusion.grad_x)
      names.emplace_back("hopper_transposing");  // which needs that role for what is behind it
    for (const auto& kernel : able(pointwise_backward_kernels(), tensors.arguments(weight_alone), names)) {
      SCOPED_TRACE(testing::PrintToString(problem));
      std::optional<Forced> separate;
      if (problem.fusion.grad_x) separate.emplace(kPointwiseBackward, "gpu_separate");
      verify_by(problem.fusion.grad_x ? kPointwiseWeight : kPointwiseBackward, kernel.name,
                [&] { verify_backward(problem); });
      ran.push_back(kernel.name);
    }
    if (ran.empty()) verify_backward(problem);
    return ran;
  }
  static void expect_among(const std::vector<std::string>& ran, const char* kernel) {
    if (!has_hopper_pointwise(GetParam().dtype)) return;
    EXPECT_NE(std::find(ran.begin(), ran.end(), kernel), ran.end()) << kernel;
  }

  static std::vector<Memory> memories() {
    if (GetParam().dtype == DataType::float32) return {Memory::contiguous, Memory::channels_last};
    return {Memory::contiguous};
  }

  static void verify_all(const std::vector<PointwiseGeometry>& geometries, const BackwardFusion& fusion) {
    for (PointwiseGeometry geometry : geometries) {
      geometry.tf32 = GetParam().dtype == DataType::float32 && GetParam().wave_size == 32;  // others have none
      for (const Memory memory : memories()) {
        const Case problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        const auto ran = verify_weight(problem);
        if (has_hopper_pointwise(GetParam().dtype)) EXPECT_FALSE(ran.empty()) << testing::PrintToString(problem);
      }
    }
  }

  /// Maps whose rows are whole runs of 16 bytes, and such of which two, four and eight are; tiles that positions,
  /// channels and outputs do not fill; more tiles than one, of each size; fewer positions than a tile has.
  static std::vector<PointwiseGeometry> geometries() {
    return {{{2, 8, 4, 4}, 24},    {{3, 24, 7, 7}, 40},   {{2, 68, 5, 6}, 36},    {{1, 100, 14, 14}, 136},
            {{5, 40, 2, 2}, 136},  {{2, 16, 7, 9}, 72},   {{1, 72, 12, 11}, 200}, {{1, 8, 40, 40}, 16},
            {{1, 320, 3, 5}, 296}, {{9, 48, 14, 14}, 48}, {{2, 24, 1, 8}, 8}};
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseWeightGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwiseWeightGpu, Plain) { verify_all(geometries(), {.grad_x = false, .grad_bias = false}); }

/// Channels that fill a warp's rows, its columns, and blocks of 64, and such that do not; several warps, and slices of
/// them; positions that are no whole products; images with positions between them and the next one.
TEST_P(PointwiseWeightGpu, FewChannels) {
  if (GetParam().dtype == DataType::float32) GTEST_SKIP() << "16-bit types only";
  const auto verify = [](const PointwiseGeometry& geometry, Memory memory) {
    const BackwardFusion fusion{.grad_x = false, .grad_bias = false};
    expect_among(verify_weight({GetParam().dtype, geometry, fusion, Memories::all(memory)}),
                 memory == Memory::contiguous ? "hopper_warp_sliced_k" : "hopper_narrow");
  };
  const PointwiseGeometry geometries[] = {{{13, 24, 24, 7}, 8},    {{33, 16, 8, 8}, 72},  {{17, 40, 8, 16}, 40},
                                          {{1, 192, 16, 129}, 32}, {{9, 16, 16, 16}, 48}, {{9, 96, 16, 16}, 16},
                                          {{1, 16, 16, 129}, 256}};
  for (const PointwiseGeometry& geometry : geometries) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) verify(geometry, memory);
  }
  if (GetParam().wave_size != 32) return;
  // Large ones, which other kernels of Hopper GPUs do not take.
  verify({{80, 40, 28, 28}, 40}, Memory::contiguous);
  const PointwiseGeometry large[] = {
      {{1, 16, 84, 84}, 72}, {{1, 40, 84, 85}, 24}, {{18, 32, 28, 28}, 40}, {{18, 40, 28, 28}, 40}};
  for (const PointwiseGeometry& geometry : large) verify(geometry, Memory::channels_last);
}

/// Maps that are no whole runs of 16 bytes, made channels_last: whole lines of channels to a block and a part of one,
/// and few of them; and such, of few channels and many positions, as are left to sliced-K.
TEST_P(PointwiseWeightGpu, Transposed) {
  verify_all({{{48, 88, 7, 7}, 88}, {{2, 64, 22, 22}, 72}, {{22, 24, 14, 14}, 24}},
             {.grad_x = false, .grad_bias = false});
}

/// Tiles by warp groups: of which one is the whole weight, whose positions blocks and clusters share, or some; fewer
/// positions than shares of them; so many that tiles are wide; so few that each tile is one block's.
TEST_P(PointwiseWeightGpu, ChannelsLast) {
  if (GetParam().dtype == DataType::float32) GTEST_SKIP() << "16-bit types only";
  const std::vector<PointwiseGeometry> geometries = {
      {{9, 64, 14, 14}, 64},  {{5, 48, 19, 21}, 72}, {{3, 96, 14, 14}, 128},  {{2, 200, 7, 7}, 136},
      {{1, 192, 12, 13}, 48}, {{1, 72, 3, 5}, 264},  {{39, 96, 14, 14}, 128}, {{1, 24, 31, 33}, 192},
      {{1, 160, 7, 7}, 328},  {{1, 320, 7, 7}, 648}, {{8, 328, 7, 7}, 72}};
  bool grad_x = false;
  for (const PointwiseGeometry& geometry : geometries) {
    const BackwardFusion fusion{.grad_x = grad_x, .grad_bias = false};
    expect_among(verify_weight({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)}), "hopper");
    grad_x = !grad_x;
  }
}

/// With a prologue of x, which is applied before them: by itself, and behind an input gradient of more outputs than one
/// pass for both takes; rows that lie apart; more channels than that has threads.
TEST_P(PointwiseWeightGpu, ChannelsLastWithPrologue) {
  if (GetParam().dtype == DataType::float32) GTEST_SKIP() << "16-bit types only";
  const std::vector<PointwiseGeometry> geometries = {{{9, 64, 14, 14}, 64}, {{2, 40, 7, 9}, 328}, {{1, 72, 3, 5}, 264},
                                                     {{3, 24, 7, 7}, 384},  {{1, 2048, 3, 5}, 8}, {{1, 2056, 3, 5}, 8}};
  std::size_t number = 0;
  for (const PointwiseGeometry& geometry : geometries) {
    for (const Memory memory : {Memory::channels_last, Memory::sliced_channels_last}) {
      const bool grad_x = number % 3 != 0;
      const BackwardFusion fusion{.prologue = true,
                                  .activation = kActivations[number % std::size(kActivations)],
                                  .sums = grad_x,
                                  .grad_x = grad_x,
                                  .grad_bias = false};
      const auto ran = verify_weight({GetParam().dtype, geometry, fusion, Memories::all(memory)});
      if (memory == Memory::channels_last) expect_among(ran, "hopper");
      ++number;
    }
  }
}

TEST_P(PointwiseWeightGpu, BesideInputGradient) {
  verify_all({{{2, 24, 7, 7}, 40}, {{1, 64, 8, 8}, 72}}, {.grad_bias = false});
}

TEST_P(PointwiseWeightGpu, GradientPrologue) {
  verify_all(geometries(), {.gradient_prologue = true, .grad_x = false, .grad_bias = false});
}

TEST_P(PointwiseWeightGpu, BothPrologues) {
  const BackwardFusion fusion{.prologue = true,
                              .activation = Activation::relu6,
                              .gradient_prologue = true,
                              .grad_x = false,
                              .grad_bias = false};
  verify_all(geometries(), fusion);
}

TEST_P(PointwiseWeightGpu, Activations) {
  for (const Activation activation : kActivations) {  // of 0, behind the end of an image, some make something else
    verify_all({{{2, 24, 7, 7}, 40}, {{1, 40, 12, 11}, 24}},
               {.prologue = true, .activation = activation, .grad_x = false, .grad_bias = false});
  }
}

}  // namespace
}  // namespace fusedsc::reference
