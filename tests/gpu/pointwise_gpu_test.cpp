/// The pointwise GPU kernels, with all that is around them; edges and random problems by force, so that each kernel
/// meets them on any GPU.
#include "gpu/pointwise_forced.h"

namespace fusedsc::reference {
namespace {

class PointwiseGpu : public OnGpu {
 protected:
  static std::vector<PointwiseGeometry> edges() {
    std::vector<PointwiseGeometry> edges = pointwise_edges();
    for (const std::int64_t channels : {8, 72, 136}) {  // several tiles of everything, in runs of any length
      edges.push_back({{2, channels, 14, 14}, 144});
      edges.push_back({{2, 144, 12, 12}, channels});
      edges.push_back({{1, channels, 16, 16}, 40, 8});
    }
    edges.push_back({{1, 264, 5, 13}, 104});  // few positions: groups share k, and the last step is none of theirs
    edges.push_back({{1, 136, 3, 5}, 328});   // many outputs: the gradient prologue is a pass of its own
    edges.push_back({{2, 24, 11, 13}, 72});   // rows of positions that are no lines of memory
    edges.push_back({{3, 67, 9, 11}, 69});    // neither positions nor channels in runs, several tiles and steps
    edges.push_back({{2, 64, 8, 8}, 1});      // one channel, whose layout says nothing
    edges.push_back({{1, 1160, 3, 5}, 24});   // few blocks that have much of k share it,
    edges.push_back({{1, 24, 3, 5}, 1160});   // in either direction
    return edges;
  }

  /// By force the host executor has one of so many edges: of each geometry its four cases in turn, beside other ones.
  static constexpr std::size_t kStep = 5;

  // For what is fused.
  const PointwiseGeometry dense = {{2, 72, 12, 14}, 80};
  const PointwiseGeometry grouped = {{2, 24, 6, 7}, 36, 3};
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(PointwiseGpu, Edges) {
  for_each_case(forward_edge_cases(GetParam().dtype, edges()), verify_forward<PointwiseGeometry>);
}

TEST_P(PointwiseGpu, EdgesByForce) {
  const auto runs = verify_pointwise_forward(some_on_host(forward_edge_cases(GetParam().dtype, edges()), kStep));
  expect_all_ran(runs, {"gpu_tiles", "gpu_skinny"});
  if (size_of(GetParam().dtype) != 2 || !has_hopper_pointwise(GetParam().dtype)) return;
  expect_all_ran(runs, {"gpu_fragments", "hopper_resident", "hopper_sliced_k", "hopper_rows", "hopper_planes_resident",
                        "hopper_planes_sliced_k"});
}

TEST_P(PointwiseGpu, Fusion) {
  for_each_case(forward_fusion_cases(GetParam().dtype, dense, grouped), verify_forward<PointwiseGeometry>);
}

/// Some steps of k, an odd number of them or shared unevenly, whose prologue is applied while others are multiplied.
TEST_P(PointwiseGpu, PrologueOfManyChannels) {
  if (size_of(GetParam().dtype) != 2 || GetParam().wave_size != 32) GTEST_SKIP() << "for 16-bit types on Hopper GPUs";
  using Output = ForwardFusion::Output;
  const PointwiseGeometry geometries[] = {
      {{1, 584, 7, 7}, 160}, {{2, 328, 7, 8}, 160}, {{3, 456, 8, 10}, 320},
      {{2, 392, 9, 9}, 96},  {{3, 200, 9, 11}, 64}, {{1, 968, 3, 5}, 32},
  };
  std::vector<ForwardCase<PointwiseGeometry>> cases;
  const auto add = [&](const PointwiseGeometry& geometry, Activation activation) {
    for (const Output output : {Output::plain, Output::statistics}) {
      const ForwardFusion fusion{.prologue = true, .activation = activation, .output = output};
      cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    }
  };
  for (const PointwiseGeometry& geometry : geometries) add(geometry, Activation::relu6);
  for (const Activation activation : {Activation::identity, Activation::silu}) add(geometries[1], activation);
  for_each_case(cases, verify_forward<PointwiseGeometry>);
}

TEST_P(PointwiseGpu, Random) {
  align_tensors(false);
  for_each_case(forward_random_cases(GetParam().dtype, random_pointwise), verify_forward<PointwiseGeometry>);
}

/// Likewise aligned, which more kernels can read, and each by force.
TEST_P(PointwiseGpu, RandomByForce) {
  const auto cases = some_on_host(forward_random_cases(GetParam().dtype, random_pointwise), 2);
  expect_all_ran(verify_pointwise_forward(cases), {"gpu_tiles"});
}

TEST_P(PointwiseGpu, BackwardEdges) {
  for_each_case(backward_edge_cases(GetParam().dtype, edges()), verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseGpu, BackwardEdgesByForce) {
  const auto cases = some_on_host(backward_edge_cases(GetParam().dtype, edges()), kStep);
  const auto runs = verify_pointwise_backward(with_halves(cases));
  expect_all_ran(runs, {"gpu_tiles", "gpu_separate"});
  if (size_of(GetParam().dtype) != 2 || !has_hopper_pointwise(GetParam().dtype)) return;
  expect_all_ran(runs, {"gpu_fragments", "hopper", "hopper_planes", "hopper_transposing"});
}

TEST_P(PointwiseGpu, BackwardFusion) {
  for_each_case(backward_fusion_cases(GetParam().dtype, dense, grouped), verify_backward<PointwiseGeometry>);
}

/// Weights whose rows begin at odd multiples of 16 bytes, in one direction's steps of k or the other's; of each family
/// of kernels, with and without fusion.
TEST_P(PointwiseGpu, WeightsInOddRuns) {
  if (size_of(GetParam().dtype) != 2 || GetParam().wave_size != 32) GTEST_SKIP() << "for 16-bit types on Hopper GPUs";
  std::vector<ForwardCase<PointwiseGeometry>> forward;
  std::vector<BackwardCase<PointwiseGeometry>> backward;
  const PointwiseGeometry geometries[] = {
      {{1, 24, 64, 65}, 144}, {{2, 40, 46, 46}, 120}, {{1, 24, 64, 64}, 72}, {{1, 40, 64, 64}, 80}};
  bool has_fusion = false;
  for (const PointwiseGeometry& geometry : geometries) {
    has_fusion = !has_fusion;
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      const auto output = has_fusion ? ForwardFusion::Output::statistics : ForwardFusion::Output::plain;
      forward.push_back(
          {GetParam().dtype, geometry, {.prologue = has_fusion, .output = output}, Memories::all(memory)});
      const BackwardFusion fusion{.prologue = has_fusion, .sums = has_fusion, .grad_weight = false, .grad_bias = false};
      backward.push_back({GetParam().dtype, geometry, fusion, Memories::all(memory)});
      has_fusion = !has_fusion;
    }
  }
  for_each_case(forward, verify_forward<PointwiseGeometry>);
  for_each_case(backward, verify_backward<PointwiseGeometry>);
}

/// Few channels in channels_last, whose tiles are runs of bytes: of one step of k and of two, the last one half or
/// whole; on a large GPU tiles for one group of a block, for some, and several for each; an epilogue. And a weight that
/// blocks keep, of many positions.
TEST_P(PointwiseGpu, TilesOfWholeRows) {
  if (size_of(GetParam().dtype) != 2 || GetParam().wave_size != 32) GTEST_SKIP() << "for 16-bit types on Hopper GPUs";
  const PointwiseGeometry geometries[] = {{{1, 72, 101, 103}, 40}, {{1, 120, 64, 64}, 40}, {{3, 104, 37, 41}, 48},
                                          {{2, 40, 46, 46}, 120},  {{1, 8, 64, 66}, 120},  {{5, 56, 30, 29}, 104},
                                          {{1, 24, 9, 11}, 72},    {{1, 16, 64, 66}, 104}, {{1, 24, 232, 224}, 24}};
  const Memories memories = Memories::all(Memory::channels_last);
  const ForwardFusion epilogue{
      .output = ForwardFusion::Output::epilogue, .epilogue_activation = Activation::relu6, .residual = true};
  std::vector<ForwardCase<PointwiseGeometry>> forward{{GetParam().dtype, {{1, 40, 112, 224}, 136}, {}, memories}};
  std::vector<BackwardCase<PointwiseGeometry>> backward;
  bool has_epilogue = false;
  for (const PointwiseGeometry& geometry : geometries) {
    has_epilogue = !has_epilogue;
    forward.push_back({GetParam().dtype, geometry, has_epilogue ? epilogue : ForwardFusion{}, memories});
    backward.push_back({GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, memories});
  }
  for_each_case(forward, verify_forward<PointwiseGeometry>);
  for_each_case(backward, verify_backward<PointwiseGeometry>);
}

/// Where there are Hopper's kernels: the first `count` problems by `kernel`, which no other of them fits.
void verify_by_kernel(const std::vector<BackwardCase<PointwiseGeometry>>& cases, const char* kernel,
                      std::size_t count) {
  std::size_t number = 0;
  for (const BackwardCase<PointwiseGeometry>& test : cases) {
    BackwardTensors<PointwiseGeometry> tensors(test);
    for (const Candidate& candidate : explain_pointwise_conv2d_backward(tensors.arguments(test))) {
      if (candidate.implementation != kernel) continue;
      if (candidate.why_not == "the GPU is no Hopper") return;
      EXPECT_EQ(candidate.why_not.empty(), number < count) << testing::PrintToString(test) << candidate.why_not;
    }
    if (number++ < count) verify_by(kPointwiseBackward, kernel, [&] { verify_backward(test); });
  }
  EXPECT_EQ(number, cases.size());
}

TEST_P(PointwiseGpu, BackwardWithoutOutput) {
  const PointwiseGeometry geometries[] =
      {
          {{1, 8, 5, 7}, 72},    {{2, 16, 21, 23}, 96}, {{1, 24, 13, 17}, 144},  // sums that registers hold,
          {{2, 32, 14, 9}, 192}, {{1, 40, 5, 17}, 264}, {{1, 64, 8, 16}, 384},   // of groups that share tiles, too,
          {{3, 96, 7, 7}, 576},  {{1, 80, 5, 7}, 480},                           // of blocks that share positions,
          {{2, 16, 9, 11}, 48},  {{1, 24, 10, 13}, 72}, {{1, 24, 5, 9}, 88},     // other networks' expansions,
          {{1, 40, 8, 9}, 120},  {{2, 40, 7, 9}, 240},  {{1, 48, 5, 7}, 96},
          {{1, 80, 7, 7}, 160},  {{1, 80, 5, 9}, 184},  {{1, 80, 3, 25}, 200},
          {{1, 80, 5, 7}, 320},  {{1, 200, 5, 5}, 16},  {{1, 12, 5, 7}, 96},  // and what is for others
      };
  std::vector<BackwardCase<PointwiseGeometry>> cases;
  BackwardFusion fusion{.gradient_prologue = true, .grad_bias = false, .output_is_of_x = true};
  for (const PointwiseGeometry& geometry : geometries) {
    fusion.grad_add = !fusion.grad_add;
    cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)});
  }
  if (size_of(GetParam().dtype) == 2) verify_by_kernel(cases, "hopper_n_resident", std::size(geometries) - 2);
  fusion.grad_weight = false;
  cases.push_back({GetParam().dtype, geometries[0], fusion, Memories::all(Memory::channels_last)});
  for_each_case(cases, verify_backward<PointwiseGeometry>);
}

/// Few outputs: runs of positions, long ones and short ones, and of channels, and neither; channels for some lanes, for
/// all of them, and for several groups of them; more positions than blocks go over at once.
TEST_P(PointwiseGpu, FewOutputs) {
  const Sizes inputs[] = {{3, 64, 6, 12}, {2, 33, 9, 11}, {2, 8, 14, 14}, {1, 300, 5, 4}, {5, 3, 1, 1}, {3, 1, 7, 9}};
  std::vector<ForwardCase<PointwiseGeometry>> forward;
  std::vector<BackwardCase<PointwiseGeometry>> backward;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    std::int64_t outputs = 0;
    for (const Sizes& x : inputs) {
      for (const ForwardFusion& fusion : {ForwardFusion{.bias = true,
                                         .prologue = true,
                                         .activation = Activation::relu6,
                                         .output = ForwardFusion::Output::statistics},
                                          ForwardFusion{.activation = Activation::silu,
                                          .output = ForwardFusion::Output::epilogue,
                                          .epilogue_activation = Activation::relu,
                                          .residual = true}}) {
        forward.push_back({GetParam().dtype, {x, 1}, fusion, Memories::all(memory)});
      }
      outputs = outputs % 4 + 1;
      for (const BackwardFusion& fusion :
           {BackwardFusion{.prologue = true, .activation = Activation::relu6, .sums = true},
            BackwardFusion{.prologue = true,
            .activation = Activation::hardswish,
            .sums = true,
            .grad_weight = false,
            .grad_bias = false},
            BackwardFusion{.grad_x = false}}) {
        backward.push_back({GetParam().dtype, {x, outputs}, fusion, Memories::all(memory)});
      }
    }
  }
  for_each_case(forward, verify_forward<PointwiseGeometry>);
  // The prior leaves small ones to others.
  int by_it = 0;
  for (const BackwardCase<PointwiseGeometry>& test : backward) {
    BackwardTensors<PointwiseGeometry> tensors(test);
    const auto candidates = explain_pointwise_conv2d_backward(tensors.arguments(test));
    const bool fits = std::any_of(candidates.begin(), candidates.end(), [](const Candidate& candidate) {
      return candidate.implementation == "gpu_skinny" && candidate.why_not.empty();
    });
    if (fits) verify_by("pointwise_conv2d.backward", "gpu_skinny", [&] { verify_backward(test); });
    else verify_backward(test);
    by_it += fits;
  }
  // In channels_last, not the weight's gradient alone of several outputs, nor one channel with several outputs.
  EXPECT_EQ(by_it, 30) << "of " << backward.size();
}

/// Half of the factors are subnormal: no product may take them for 0, as matrix cores of AMD's gfx90a do.
TEST_P(PointwiseGpu, SubnormalFactors) {
  constexpr double kLeastNormal = 0x1p-14;
  if (GetParam().dtype != DataType::float16) GTEST_SKIP() << "for float16";
  Random random(3);
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const ForwardCase<PointwiseGeometry> forward{GetParam().dtype, dense, {}, Memories::all(memory)};
    ForwardTensors<PointwiseGeometry> tensors(forward);
    tensors.x.fill(random, -2 * kLeastNormal, 2 * kLeastNormal);
    const Output y("y", tensors.y, tensors.raw_output(forward));
    verify(PointwiseGeometry::kForward, tensors.arguments(forward), {y});

    const BackwardCase<PointwiseGeometry> backward{
        GetParam().dtype, dense, {.grad_bias = false}, Memories::all(memory)};
    BackwardTensors<PointwiseGeometry> gradients(backward);
    gradients.grad_y.fill(random, -2 * kLeastNormal, 2 * kLeastNormal);
    const Precision precision(GetParam().dtype);
    const Array grad_y = gradients.grad_y.values();
    const Output grad_x("grad_x", gradients.grad_x, dense.input_gradient(precision, grad_y, gradients.weight.values()));
    const Output grad_weight("grad_weight", gradients.grad_weight,
                             dense.weight_gradient(precision, grad_y, gradients.x.values()),
                             Output::Kind::partial_sums);
    verify(PointwiseGeometry::kBackward, gradients.arguments(backward), {grad_x, grad_weight});
  }
}

/// One factor alone that is subnormal, the least one, the greatest, or not quite, in either half of a word and wherever
/// matrix cores take it from.
TEST_P(PointwiseGpu, OneSubnormalFactor) {
  constexpr double kLeast = 0x1p-24, kLeastNormal = 0x1p-14;
  if (GetParam().dtype != DataType::float16) GTEST_SKIP() << "for float16";
  Random random(5);
  std::int64_t channel = 0;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const ForwardCase<PointwiseGeometry> forward{GetParam().dtype, dense, {}, Memories::all(memory)};
    ForwardTensors<PointwiseGeometry> tensors(forward);
    tensors.weight.fill(random, 0x1p12, 0x1p13);
    for (const double value : {kLeast, -kLeast, kLeastNormal - kLeast, kLeast - kLeastNormal, kLeastNormal}) {
      for (int i = 0; i < 3; ++i, channel = (channel + 5) % tensors.x.sizes()[1]) {
        SCOPED_TRACE(testing::Message() << value << " in channel " << channel);
        Array x = tensors.x.values();
        for (Bounded& each : x.elements) each = {};
        x.at(1, channel, channel % 12, channel % 14).value = value;
        tensors.x.fill(x);
        const Output y("y", tensors.y, tensors.raw_output(forward));
        verify(PointwiseGeometry::kForward, tensors.arguments(forward), {y});
      }
    }
  }
}

/// Maps of 1x1 are channels_last whatever their strides say of rows and columns.
TEST_P(PointwiseGpu, OnePositionIsChannelsLast) {
  std::vector<std::string> taken;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const ForwardCase<PointwiseGeometry> test{GetParam().dtype, {{8, 64, 1, 1}, 32}, {}, Memories::all(memory)};
    ForwardTensors<PointwiseGeometry> tensors(test);
    for (const Candidate& candidate : explain_pointwise_conv2d(tensors.arguments(test))) {
      if (candidate.taken) taken.push_back(candidate.implementation);
    }
  }
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0], taken[1]);
}

/// float32 with factors of TensorFloat-32: sizes at and next to those of tiles and of runs.
class PointwiseTf32Gpu : public PointwiseGpu {
 protected:
  void SetUp() override {
    PointwiseGpu::SetUp();
    if (GetParam().dtype != DataType::float32) GTEST_SKIP() << "for float32";
    if (GetParam().wave_size != 32) GTEST_SKIP() << "GPUs of this wave size have no TF32";
  }

  static std::vector<PointwiseGeometry> tf32_edges() {
    std::vector<PointwiseGeometry> edges = {
        {{1, 17, 1, 13}, 19},   {{2, 8, 4, 4}, 24},     {{2, 32, 4, 9}, 32},     {{1, 33, 5, 7}, 65},
        {{5, 40, 2, 2}, 136},   {{3, 100, 7, 7}, 24},   {{1, 7, 28, 28}, 10},    {{2, 144, 12, 12}, 72},
        {{1, 72, 14, 14}, 144}, {{1, 24, 40, 40}, 144}, {{4, 20, 20, 20}, 16},   {{1, 300, 3, 5}, 320},
        {{2, 24, 5, 7}, 12, 2}, {{1, 64, 4, 9}, 32, 4}, {{1, 12, 5, 7}, 24, 12}, {{1, 1, 1, 1}, 1},
        {{2, 48, 9, 9}, 24},  // channels that are no whole lines of memory,
        {{2, 36, 7, 9}, 44},  // and whose runs of 8 are no whole ones
        {{1, 264, 5, 13}, 104}, {{1, 136, 3, 5}, 328},  {{3, 16, 12, 14}, 96},   {{1, 1160, 3, 5}, 24},
        {{1, 24, 3, 5}, 1160},  // few blocks that have much of k
    };
    for (PointwiseGeometry& geometry : edges) geometry.tf32 = true;
    return edges;
  }
  static PointwiseGeometry random_tf32(Random& random) {
    PointwiseGeometry geometry = random_pointwise(random);
    geometry.tf32 = true;
    return geometry;
  }

  const PointwiseGeometry tf32_dense = {{2, 72, 6, 14}, 80, 1, true};
  const PointwiseGeometry tf32_grouped = {{2, 24, 6, 7}, 36, 3, true};
  /// So many that the gradient prologue is a pass of its own.
  const PointwiseGeometry tf32_wide = {{1, 448, 3, 5}, 96, 1, true};
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseTf32Gpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwiseTf32Gpu, Edges) {
  for_each_case(forward_edge_cases(GetParam().dtype, tf32_edges()), verify_forward<PointwiseGeometry>);
}

TEST_P(PointwiseTf32Gpu, EdgesByForce) {
  const auto runs = verify_pointwise_forward(some_on_host(forward_edge_cases(GetParam().dtype, tf32_edges()), kStep));
  if (!has_hopper_pointwise(GetParam().dtype)) return;
  expect_all_ran(runs, {"hopper_resident", "hopper_sliced_k", "hopper_planes_resident", "hopper_planes_sliced_k"});
}

TEST_P(PointwiseTf32Gpu, Fusion) {
  for_each_case(forward_fusion_cases(GetParam().dtype, tf32_dense, tf32_grouped), verify_forward<PointwiseGeometry>);
}

TEST_P(PointwiseTf32Gpu, Random) {
  align_tensors(false);
  for_each_case(forward_random_cases(GetParam().dtype, random_tf32), verify_forward<PointwiseGeometry>);
}

TEST_P(PointwiseTf32Gpu, BackwardEdges) {
  for_each_case(backward_edge_cases(GetParam().dtype, tf32_edges()), verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseTf32Gpu, BackwardEdgesByForce) {
  const auto cases = some_on_host(backward_edge_cases(GetParam().dtype, tf32_edges()), kStep);
  const auto runs = verify_pointwise_backward(with_halves(cases));
  if (has_hopper_pointwise(GetParam().dtype)) expect_all_ran(runs, {"hopper", "hopper_planes"});
}

/// Input gradients whose weight is read as planes: fewer positions and channels than a tile has, and more; k that one
/// group goes through, that several share, and that a cluster does.
TEST_P(PointwiseTf32Gpu, InputGradientSwapAb) {
  const PointwiseGeometry geometries[] = {
      {{1, 16, 1, 3}, 24, 1, true},   {{2, 36, 3, 5}, 40, 1, true},   {{1, 100, 9, 9}, 72, 1, true},
      {{3, 136, 4, 4}, 328, 1, true}, {{2, 264, 7, 7}, 64, 1, true},  {{1, 40, 2, 2}, 1160, 1, true},
      {{1, 324, 5, 7}, 132, 1, true}, {{2, 64, 10, 13}, 20, 1, true},
  };
  std::vector<BackwardCase<PointwiseGeometry>> cases;
  const BackwardFusion fusion{.grad_weight = false, .grad_bias = false};
  for (const PointwiseGeometry& geometry : geometries) {
    cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)});
  }
  for_each_case(cases, verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseTf32Gpu, BackwardFusion) {
  for_each_case(backward_fusion_cases(GetParam().dtype, tf32_dense, tf32_grouped), verify_backward<PointwiseGeometry>);
  const BackwardFusion fusion{.prologue = true, .gradient_prologue = true, .sums = true, .grad_bias = false};
  verify_backward<PointwiseGeometry>({GetParam().dtype, tf32_wide, fusion, Memories::all(Memory::channels_last)});
}

/// Expansions whose output is not read: sums that registers hold, with outputs missing, and what is for others.
TEST_P(PointwiseTf32Gpu, BackwardWithoutOutput) {
  const PointwiseGeometry geometries[] = {
      {{2, 16, 21, 23}, 96, 1, true}, {{1, 16, 5, 7}, 72, 1, true},   {{1, 24, 13, 17}, 144, 1, true},
      {{1, 24, 8, 12}, 100, 1, true}, {{2, 32, 14, 9}, 192, 1, true}, {{1, 32, 9, 11}, 132, 1, true},
      {{1, 32, 4, 4}, 64, 1, true},   {{2, 16, 9, 11}, 48, 1, true},  {{1, 24, 10, 13}, 72, 1, true},
      {{1, 32, 7, 15}, 96, 1, true},  {{1, 40, 5, 17}, 240, 1, true},
  };
  std::vector<BackwardCase<PointwiseGeometry>> cases;
  BackwardFusion fusion{.gradient_prologue = true, .grad_bias = false, .output_is_of_x = true};
  for (const PointwiseGeometry& geometry : geometries) {
    fusion.grad_add = !fusion.grad_add;
    cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)});
  }
  verify_by_kernel(cases, "hopper_n_resident", std::size(geometries) - 1);  // 40 channels are for others
  for_each_case(cases, verify_backward<PointwiseGeometry>);
}

/// Projections, both gradients in one pass: channels that fill its tiles, that do not, and what is for others.
TEST_P(PointwiseTf32Gpu, BackwardProjection) {
  const PointwiseGeometry geometries[] = {
      {{2, 32, 9, 13}, 16, 1, true},  {{1, 24, 5, 5}, 16, 1, true},    {{1, 96, 11, 10}, 24, 1, true},
      {{1, 128, 9, 12}, 24, 1, true}, {{2, 144, 7, 8}, 32, 1, true},   {{1, 192, 10, 20}, 32, 1, true},
      {{1, 96, 4, 4}, 16, 1, true},   {{1, 100, 3, 131}, 24, 1, true},
  };
  std::vector<BackwardCase<PointwiseGeometry>> cases;
  for (const PointwiseGeometry& geometry : geometries) {
    for (const Activation activation :
         {Activation::identity, Activation::relu, Activation::relu6, Activation::silu, Activation::gelu}) {
      const BackwardFusion fusion{.prologue = true,
                                  .activation = activation,
                                  .gradient_prologue = activation != Activation::relu,
                                  .sums = true,
                                  .grad_bias = false};
      cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    }
  }
  for_each_case(cases, verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseTf32Gpu, RandomByForce) {
  verify_pointwise_forward(some_on_host(forward_random_cases(GetParam().dtype, random_tf32), 2));
  verify_pointwise_backward(with_halves(some_on_host(backward_random_cases(GetParam().dtype, random_tf32), 2)));
}

TEST_P(PointwiseTf32Gpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(backward_random_cases(GetParam().dtype, random_tf32), verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseGpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(backward_random_cases(GetParam().dtype, random_pointwise), verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseGpu, BackwardRandomByForce) {
  const auto cases = some_on_host(backward_random_cases(GetParam().dtype, random_pointwise), 2);
  expect_all_ran(verify_pointwise_backward(with_halves(cases)), {"gpu_tiles", "gpu_separate"});
}

/// What Hopper GPUs compute in one pass: few outputs, an activated x, no bias. Channels below, at and above a tile of
/// 64, several positions to a row, and more tiles of positions than groups of warps.
TEST_P(PointwiseGpu, BothGradientsOfProjections) {
  const DataType dtype = GetParam().dtype;
  if (size_of(dtype) != 2) GTEST_SKIP() << "for 16-bit types";
  std::vector<BackwardCase<PointwiseGeometry>> cases;
  for (const PointwiseGeometry& geometry : std::vector<PointwiseGeometry>{{{2, 32, 10, 14}, 16},
                                                                          {{1, 16, 9, 8}, 24},
                                                                          {{1, 32, 5, 13}, 16},
                                                                          {{1, 96, 6, 7}, 24},
                                                                          {{3, 144, 5, 9}, 32},
                                                                          {{1, 200, 5, 5}, 64},
                                                                          {{1, 8, 7, 7}, 8},
                                                                          {{1, 72, 5, 9}, 320},
                                                                          {{2, 136, 8, 9}, 160}}) {
    for (const Activation activation : kActivations) {
      for (const bool on : {false, true}) {
        const BackwardFusion fusion{
            .prologue = true, .activation = activation, .gradient_prologue = on, .sums = true, .grad_bias = false};
        cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
      }
    }
  }
  for_each_case(cases, verify_backward<PointwiseGeometry>);
}

/// So many positions that groups of warps come round to the stages of shared memory more than twice.
TEST_P(PointwiseGpu, BothGradientsOfManyPositions) {
  const DataType dtype = GetParam().dtype;
  if (size_of(dtype) != 2) GTEST_SKIP() << "for 16-bit types";
  std::vector<BackwardCase<PointwiseGeometry>> cases;
  for (const PointwiseGeometry& geometry : std::vector<PointwiseGeometry>{
           {{1, 40, 57, 61}, 64}, {{2, 32, 45, 47}, 16}, {{1, 24, 43, 61}, 160}, {{1, 64, 27, 43}, 320}}) {
    const BackwardFusion fusion{.prologue = true,
                                .activation = Activation::relu6,
                                .gradient_prologue = false,
                                .sums = true,
                                .grad_bias = false};
    cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
  }
  for (const PointwiseGeometry& geometry :
       std::vector<PointwiseGeometry>{{{1, 64, 57, 61}, 128}, {{1, 32, 45, 47}, 64}, {{1, 24, 43, 61}, 256}}) {
    cases.push_back({dtype, geometry, {.grad_bias = false}, Memories::all(Memory::channels_last)});
  }
  for_each_case(cases, verify_backward<PointwiseGeometry>);
}

TEST_P(PointwiseGpu, EmptyBatch) {
  const PointwiseGeometry empty{{0, 24, 5, 7}, 40};
  verify_forward<PointwiseGeometry>({GetParam().dtype, empty, {}, Memories::all(Memory::channels_last)});
  verify_backward<PointwiseGeometry>({GetParam().dtype, empty, {}, Memories::all(Memory::channels_last)});
}

}  // namespace
}  // namespace fusedsc::reference
