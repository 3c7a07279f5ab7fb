/// The depthwise GPU kernels, with all that is around them: each kernel by force, so that it is reached on any GPU,
/// however small the problem.
#include "gpu/depthwise_forced.h"
#include "gpu/depthwise_isolation.h"

namespace fusedsc::reference {
namespace {

class DepthwiseGpu : public OnGpu {
 protected:
  static std::vector<DepthwiseGeometry> edges() {
    std::vector<DepthwiseGeometry> edges = depthwise_edges();
    for (const std::int64_t stride : {1, 2}) {  // many strips for each thread; windows of the specialised kernels
      edges.push_back({{3, 16, 31, 30}, centered(3, stride)});
      edges.push_back({{2, 12, 23, 17}, centered(5, stride)});
      edges.push_back({{1, 6, 19, 15}, centered(7, stride)});
      edges.push_back({{1, 4, 15, 14}, {{3, 3}, {stride, stride}, {1, 1}, {0, 1, 0, 1}}});
      edges.push_back({{1, 4, 15, 14}, {{3, 3}, {stride, stride}, {1, 1}, {2, 3, 4, 2}}});
    }
    edges.push_back(
        {{5, 24, 13, 15}, centered(5)});  // enough for products of matrices; a channel block that is half full
    edges.push_back({{9, 8, 21, 8}, {{5, 5}, {1, 1}, {1, 1}, {4, 0, 1, 3}}});
    // Windows that rows in registers do not know: their positions in classes by stride and dilation.
    for (const std::int64_t multiplier : {1, 2}) {
      edges.push_back({{3, 10, 13, 14}, centered(4), multiplier});
      edges.push_back({{2, 10, 17, 16}, {{3, 3}, {3, 3}, {1, 1}, {1, 1, 1, 1}}, multiplier});
      edges.push_back({{2, 10, 12, 15}, {{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}, multiplier});
      edges.push_back({{2, 7, 15, 12}, {{2, 3}, {4, 4}, {2, 6}, {0, 5, 1, 2}}, multiplier});  // common divisors
    }
    edges.push_back({{1, 5, 40, 21}, {{9, 6}, {1, 1}, {3, 4}, {9, 11, 12, 12}}});  // more than one run of taps
    edges.push_back({{1, 2, 9, 8}, {{2, 1}, {5, 7}, {1, 1}, {3, 4, 2, 1}}});       // strides beyond the kernel
    edges.push_back({{1, 1, 5, 300}, {{3, 33}, {1, 1}, {1, 1}, {16, 16, 1, 1}}});
    edges.push_back({{1, 2, 5, 9}, centered(121)});  // a tile of it is larger than shared memory
    edges.push_back({{2, 3, 11, 12}, {{3, 3}, {2, 2}, {3, 3}, {3, 3, 3, 3}}});  // stride and dilation without a divisor
    return edges;
  }

  // For what is fused.
  const DepthwiseGeometry stride_one = {{2, 20, 8, 13}, centered(3)};
  const DepthwiseGeometry multiplied = {{2, 19, 8, 13}, centered(3, 2), 2};
  const DepthwiseGeometry stride_two = {{2, 8, 9, 10}, centered(3, 2)};
  const DepthwiseGeometry stride_three = {{2, 8, 17, 16}, centered(3, 3)};
};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(DepthwiseGpu, Edges) { verify_forward_by_each(forward_edge_cases(GetParam().dtype, edges())); }

TEST_P(DepthwiseGpu, Fusion) {
  verify_forward_by_each(forward_fusion_cases(GetParam().dtype, stride_one, multiplied));
  verify_forward_by_each(forward_fusion_cases(GetParam().dtype, stride_two, stride_one));
  verify_forward_by_each(forward_fusion_cases(GetParam().dtype, stride_three, multiplied));
}

/// Enough of channels that TMA can take, and images whose columns fill its tiles, or do not.
std::vector<DepthwiseGeometry> tile_geometries() {
  std::vector<DepthwiseGeometry> geometries;
  for (const std::int64_t kernel : {3, 5}) {
    for (const std::int64_t stride : {1, 2}) {
      const Window window = centered(kernel, stride);
      geometries.insert(geometries.end(), {{{3, 160, 7 * stride, 7 * stride}, window},  // several images to a tile
                                           {{3, 32, 14 * stride, 14 * stride}, window},
                                           {{2, 32, 9, 28 * stride}, window},
                                           {{1, 32, 8, 56 * stride}, window},
                                           {{1, 32, 5, 112 * stride}, window},
                                           {{1, 32, 4, 131 * stride}, window},  // several tiles to a row
                                           {{2, 136, 7, 9 * stride}, window}});
      // In segments of whole rows.
      geometries.insert(geometries.end(), {{{2, 72, 11 * stride, 56}, window}, {{3, 24, 13, 28 * stride}, window}});
      if (kernel == 3) geometries.insert(geometries.end(), {{{5, 16, 8, 43}, window}, {{3, 40, 9, 39}, window}});
      if (kernel == 3 || stride == 2) {  // likewise, of as many channels as a block has warps for
        geometries.insert(geometries.end(), {{{2, 144, 13, 56}, window}, {{2, 136, 17, 43}, window}});
      }
    }
  }
  // Windows of which a warp has half a run of channels.
  geometries.insert(geometries.end(), {{{5, 40, 7, 7}, centered(7)}, {{2, 32, 9, 28}, centered(7)}});
  return geometries;
}

std::vector<ForwardCase<DepthwiseGeometry>> tile_cases(DataType dtype) {
  std::vector<ForwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : tile_geometries()) {
    for (ForwardFusion fusion :
         {ForwardFusion{},
          {.output = ForwardFusion::Output::statistics},
          {.prologue = true, .activation = Activation::relu6, .output = ForwardFusion::Output::statistics},
          {.bias = true,
          .activation = Activation::silu,
          .output = ForwardFusion::Output::epilogue,
          .epilogue_activation = Activation::relu,
          .residual = true}}) {
      cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    }
  }
  return cases;
}

/// Kernels whose tiles TMA brings, of channels_last tensors.
const Names kTileKernels = {"hopper_tiles",         "hopper_patches",         "hopper_columns",
                            "forward_hopper_tiles", "forward_hopper_patches", "forward_hopper_columns"};

TEST_P(DepthwiseGpu, Tiles) {
  const int runs = verify_forward_by_each(tile_cases(GetParam().dtype), kTileKernels);
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype));
}

/// 7x7 at stride 1: a network's maps, others, and such as are smaller than a window; channels that fill boxes or do
/// not, and fewer; windows that are not centred.
std::vector<DepthwiseGeometry> seven_geometries() {
  std::vector<DepthwiseGeometry> geometries;
  for (const Sizes& x : std::initializer_list<Sizes>{{1, 96, 56, 56},
                                                     {2, 192, 28, 28},
                                                     {5, 104, 14, 14},
                                                     {1, 768, 7, 7},
                                                     {9, 40, 7, 7},
                                                     {3, 8, 13, 13},
                                                     {2, 24, 5, 1},
                                                     {17, 16, 1, 1},
                                                     {1, 72, 3, 2},
                                                     {4, 48, 21, 17},
                                                     {2, 56, 9, 33},
                                                     {1, 32, 8, 131}}) {
    geometries.push_back({x, centered(7)});
  }
  geometries.push_back({{2, 40, 12, 15}, {{7, 7}, {1, 1}, {1, 1}, {0, 6, 1, 4}}});
  geometries.push_back({{2, 40, 9, 14}, {{7, 7}, {1, 1}, {1, 1}, {6, 0, 5, 0}}});
  return geometries;
}

TEST_P(DepthwiseGpu, SevenBySeven) {
  std::vector<DepthwiseForwardCase> cases;
  std::vector<DepthwiseBackwardCase> inputs, weights;
  const DataType dtype = GetParam().dtype;
  const Memories memories = Memories::all(Memory::channels_last);
  for (const DepthwiseGeometry& geometry : seven_geometries()) {
    for (const bool has_bias : {false, true}) cases.push_back({dtype, geometry, {.bias = has_bias}, memories});
    inputs.push_back({dtype, geometry, {.grad_weight = false, .grad_bias = false}, memories});
    for (const bool has_bias : {false, true}) {
      weights.push_back({dtype, geometry, {.grad_x = false, .grad_bias = has_bias}, memories});
    }
  }
  const bool can = has_hopper(dtype) && size_of(dtype) == 2;
  EXPECT_EQ(verify_forward_by_each(cases, {"hopper_patches"}), can ? cases.size() : 0u);
  EXPECT_EQ(verify_backward_by_each(inputs, {kInputRole}, {"forward_hopper_patches"}), can ? inputs.size() : 0u);
  EXPECT_EQ(verify_backward_by_each(weights, {kWeightRole}, {"hopper_patches"}), can ? weights.size() : 0u);
}

TEST_P(DepthwiseGpu, ChannelsApart) {
  for (DepthwiseForwardCase problem : tile_cases(GetParam().dtype)) {
    problem.fusion.activation = Activation::identity;
    SCOPED_TRACE(testing::PrintToString(problem));
    for (const auto& kernel :
         able_forward(problem, {"hopper_tiles", "hopper_patches", "hopper_columns", "gpu_matrix", "gpu_rows"})) {
      const Forced forced(kForwardRole, kernel.name);
      SCOPED_TRACE(kernel.name);
      verify_isolation(problem);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DepthwiseGpu, Random) {
  align_tensors(false);
  verify_forward_by_each(forward_random_cases(GetParam().dtype, random_depthwise));
}

TEST_P(DepthwiseGpu, BackwardEdges) { verify_backward_by_all(backward_edge_cases(GetParam().dtype, edges())); }

TEST_P(DepthwiseGpu, BackwardFusion) {
  verify_backward_by_all(backward_fusion_cases(GetParam().dtype, stride_one, multiplied));
  verify_backward_by_all(backward_fusion_cases(GetParam().dtype, stride_two, stride_one));
}

/// Both gradients of windows for which there may be a kernel that computes them together, with what may be fused with
/// it.
std::vector<BackwardCase<DepthwiseGeometry>> fused_gradients_cases(DataType dtype) {
  std::vector<DepthwiseGeometry> geometries;
  for (const std::int64_t stride : {1, 2}) {
    const Window window = centered(3, stride);
    geometries.insert(geometries.end(), {{{3, 64, 7 * stride, 7 * stride}, window},  // columns that fill all tiles
                                         {{2, 48, 9 * stride, 14 * stride}, window},
                                         {{2, 16, 5 * stride, 28 * stride}, window},
                                         {{4, 72, 33, 27}, window},  // that do not; more channels than a tile's
                                         {{1, 24, 8, 9}, window},
                                         {{2, 8, 1, 1}, window},
                                         {{1, 136, 2, 37}, window}});
    const Window large = centered(5, stride);
    geometries.insert(geometries.end(), {{{3, 64, 7 * stride, 7 * stride}, large},
                                         {{2, 120, 9 * stride, 14 * stride}, large},
                                         {{1, 24, 5 * stride, 28 * stride}, large},
                                         {{4, 72, 33, 27}, large},
                                         {{5, 40, 7, 7}, large},
                                         {{3, 16, 5, 5}, large},
                                         {{3, 8, 3, 3}, large},
                                         {{2, 8, 1, 1}, large},
                                         {{1, 136, 2, 37}, large}});
  }
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : geometries) {
    BackwardFusion fusion{.grad_bias = false};
    cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    fusion.gradient_prologue = true;
    cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    fusion.prologue = true;
    for (const Activation activation : kActivations) {
      fusion.activation = activation;
      fusion.sums = activation != Activation::identity;
      fusion.gradient_prologue = activation != Activation::relu;
      cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    }
  }
  return cases;
}

TEST_P(DepthwiseGpu, BackwardFused) {
  const std::vector<DepthwiseBackwardCase> cases = fused_gradients_cases(GetParam().dtype);
  const int runs = verify_backward_by_each(cases, {kBackwardRole}, {"hopper_fused_gradients"});
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype));
  verify_backward_by_each(cases, {kBackwardRole}, {"gpu_separate"});
}

/// One gradient alone.
std::vector<BackwardCase<DepthwiseGeometry>> backward_tile_cases(DataType dtype) {
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : tile_geometries()) {
    for (const BackwardFusion& fusion :
         {BackwardFusion{.grad_x = false, .grad_bias = false}, BackwardFusion{.grad_x = false, .grad_weight = false},
          BackwardFusion{.grad_weight = false, .grad_bias = false},
          BackwardFusion{.grad_add = true, .grad_weight = false, .grad_bias = false}}) {
      cases.push_back({dtype, geometry, fusion, Memories::all(Memory::channels_last)});
    }
  }
  return cases;
}

/// Of the gradients of a weight.
void verify_isolation(const BackwardCase<DepthwiseGeometry>& problem) {
  BackwardTensors<DepthwiseGeometry> tensors(problem);
  const Precision precision(problem.dtype);
  const Array expected = problem.geometry.weight_gradient(precision, tensors.grad_y.values(), tensors.x.values());
  Array wild;
  tensors.x.fill(with_wild_elements(tensors.x.values(), wild));
  run(DepthwiseGeometry::kBackward, tensors.arguments(problem));
  const Array weight = tensors.grad_weight.values();
  for_each_index(weight.sizes, [&](auto c, auto one, auto kh, auto kw) {
    if (c == 3 || c == 9 || c == wild.sizes[1] - 2) return;
    const Bounded bound = stored(precision, expected.at(c, one, kh, kw));
    ASSERT_LE(std::abs(weight.at(c, one, kh, kw).value - bound.value), bound.error) << "channel " << c;
  });
}

TEST_P(DepthwiseGpu, BackwardChannelsApart) {
  for (const DepthwiseGeometry& geometry : tile_geometries()) {
    const BackwardFusion fusion{.grad_x = false, .grad_bias = false};
    const BackwardCase<DepthwiseGeometry> problem{GetParam().dtype, geometry, fusion,
                                                  Memories::all(Memory::channels_last)};
    SCOPED_TRACE(testing::PrintToString(problem));
    for (const auto& kernel :
         able_backward(problem, kWeightRole, {"hopper_tiles", "hopper_patches", "hopper_columns", "gpu_rows"})) {
      const Forced forced(kWeightRole, kernel.name);
      SCOPED_TRACE(kernel.name);
      verify_isolation(problem);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(DepthwiseGpu, BackwardTiles) {
  const int runs =
      verify_backward_by_each(backward_tile_cases(GetParam().dtype), {kInputRole, kWeightRole}, kTileKernels);
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype));
}

/// Enough images for the tiles that large batches have: forward, and gradients of weight and bias.
TEST_P(DepthwiseGpu, ManyImages) {
  const Sizes one[] = {{64, 40, 4, 28},  {64, 72, 2, 50},  {33, 408, 3, 7},
                       {32, 416, 3, 14}, {65, 448, 3, 13}, {67, 40, 5, 7}},
              two[] = {{64, 72, 5, 26}, {65, 64, 4, 50}, {64, 136, 5, 27}};
  std::vector<DepthwiseGeometry> geometries;
  for (const Sizes& x : one) geometries.push_back({x, centered(3, 1)});
  for (const Sizes& x : two) geometries.insert(geometries.end(), {{x, centered(3, 2)}, {x, centered(5, 2)}});
  int runs = 0;
  for (const DepthwiseGeometry& geometry : geometries) {
    const Memories memories = Memories::all(Memory::channels_last);
    runs += verify_forward_by_each({{GetParam().dtype, geometry, {}, memories}}, kTileKernels);
    runs += verify_backward_by_each({{GetParam().dtype, geometry, {.grad_x = false}, memories}}, {kWeightRole},
                                    kTileKernels);
  }
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype));
}

/// Likewise, gradients of weights alone: enough for a GPU's patches, and for clusters of blocks.
TEST_P(DepthwiseGpu, ManyImagesOfWeights) {
  const DepthwiseGeometry geometries[] = {{{64, 40, 9, 28}, centered(3)},
                                          {{64, 40, 9, 28}, centered(5)},
                                          {{64, 40, 9, 28}, centered(7)},
                                          {{33, 24, 13, 56}, centered(3, 2)},
                                          {{16, 32, 29, 40}, centered(7)}};
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : geometries) {
    cases.push_back({GetParam().dtype, geometry, {.grad_x = false}, Memories::all(Memory::channels_last)});
  }
  const int runs = verify_backward_by_each(cases, {kWeightRole}, kTileKernels);
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype));
}

/// Likewise, forward in training: tiles of their own.
TEST_P(DepthwiseGpu, ManyImagesInTraining) {
  std::vector<ForwardCase<DepthwiseGeometry>> cases;
  const auto add = [&](const Sizes& x, std::int64_t stride, bool has_prologue) {
    const ForwardFusion fusion{.prologue = has_prologue, .output = ForwardFusion::Output::statistics};
    cases.push_back({GetParam().dtype, {x, centered(3, stride)}, fusion, Memories::all(Memory::channels_last)});
  };
  for (const std::int64_t width : {14, 50, 66}) add({128, 32, 2, width}, 1, false);
  add({32, 32, 5, 14}, 2, false);
  add({128, 32, 3, 14}, 2, true);
  const int runs = verify_forward_by_each(cases, kTileKernels);
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype) && size_of(GetParam().dtype) == 2);
}

/// The gradient of the input alone, of images that are wide, and enough of them for a kernel of its own.
std::vector<DepthwiseGeometry> wide_geometries() {
  std::vector<DepthwiseGeometry> geometries;
  for (const std::int64_t kernel : {3, 5}) {
    const Window window = centered(kernel, 2);
    geometries.insert(geometries.end(), {{{5, 72, 12, 56}, window},
                                         {{6, 24, 13, 56}, window},   // in segments of whole rows
                                         {{2, 48, 11, 111}, window},  // an odd number of rows and columns
                                         {{1, 32, 16, 262}, window},  // several tiles to a row
                                         {{3, 160, 14, 14}, {{kernel, kernel}, {2, 2}, {1, 1}, {0, 1, 0, 1}}}});
  }
  return geometries;
}

TEST_P(DepthwiseGpu, BackwardInputTiles) {
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : wide_geometries()) {
    const BackwardFusion fusion{.grad_weight = false, .grad_bias = false};
    cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)});
  }
  const int runs = verify_backward_by_each(cases, {kInputRole}, {"hopper_patches"});
  EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype) && size_of(GetParam().dtype) == 2);
}

/// What is not finite in one channel of grad_y stays there, and in the elements of grad_x that it reaches.
TEST_P(DepthwiseGpu, BackwardInputChannelsApart) {
  const Precision precision(GetParam().dtype);
  for (const DepthwiseGeometry& geometry : wide_geometries()) {
    const BackwardCase<DepthwiseGeometry> problem{
        GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, Memories::all(Memory::channels_last)};
    SCOPED_TRACE(testing::PrintToString(problem));
    const auto kernels = able_backward(problem, kInputRole, {"hopper_patches", "gpu_rows", "gpu_windows"});
    const Forced forced(kInputRole, kernels.at(0).name);
    BackwardTensors<DepthwiseGeometry> tensors(problem);
    const Array expected = geometry.input_gradient(precision, tensors.grad_y.values(), tensors.weight.values());
    Array wild, ones(tensors.weight.sizes());
    for (Bounded& element : ones.elements) element.value = 1;
    tensors.grad_y.fill(with_wild_elements(tensors.grad_y.values(), wild));
    const Array affected = geometry.input_gradient(precision, wild, ones);
    run(DepthwiseGeometry::kBackward, tensors.arguments(problem));
    const Array grad_x = tensors.grad_x.values();
    for_each_index(grad_x.sizes, [&](auto n, auto c, auto h, auto w) {
      if (affected.at(n, c, h, w).value > 0) return;
      const Bounded bound = stored(precision, expected.at(n, c, h, w));
      ASSERT_LE(std::abs(grad_x.at(n, c, h, w).value - bound.value), bound.error)
          << "[" << n << ", " << c << ", " << h << ", " << w << "]";
    });
    if (HasFatalFailure()) return;
  }
}

/// Contiguous tensors whose rows warps can share, in whole planes and in strips of them.
std::vector<DepthwiseGeometry> plane_geometries() {
  std::vector<DepthwiseGeometry> geometries;
  for (const std::int64_t kernel : {3, 5}) {
    for (const std::int64_t stride : {1, 2}) {
      const Window window = centered(kernel, stride);
      geometries.insert(geometries.end(), {{{7, 40, 7 * stride, 7 * stride}, window},
                                           {{6, 12, 14 * stride, 14 * stride}, window},
                                           {{3, 9, 28 * stride, 28 * stride}, window},  // channels left over
                                           {{2, 5, 57, 56}, window},                    // an odd number of rows
                                           {{1, 3, 112, 112}, window},
                                           {{9, 8, 9, 20 * stride}, window},
                                           {{25, 8, 7 * stride, 10 * stride}, window},  // planes within runs of bytes
                                           {{25, 16, 2, 16 * stride}, window},
                                           {{40, 5, 14, 14}, window}});  // more images than a block has warps
    }
  }
  return geometries;
}

/// Likewise, of windows with a dilation.
std::vector<DepthwiseGeometry> dilated_plane_geometries() {
  const Window window{{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}};
  return {{{7, 40, 7, 7}, window},    {{6, 12, 14, 14}, window}, {{3, 9, 28, 28}, window}, {{2, 5, 57, 56}, window},
          {{1, 3, 112, 112}, window}, {{3, 8, 9, 20}, window},   {{25, 8, 2, 16}, window}};
}

TEST_P(DepthwiseGpu, Planes) {
  std::vector<ForwardCase<DepthwiseGeometry>> cases;
  for (const auto& geometries : {plane_geometries(), dilated_plane_geometries()}) {
    for (const DepthwiseGeometry& geometry : geometries) {
      for (const ForwardFusion& fusion : {ForwardFusion{}, ForwardFusion{.bias = true},
                                          ForwardFusion{.bias = true, .output = ForwardFusion::Output::statistics}}) {
        cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::contiguous)});
      }
    }
  }
  EXPECT_EQ(verify_forward_by_each(cases, {"hopper_planes"}) > 0, has_hopper(GetParam().dtype));
}

TEST_P(DepthwiseGpu, BackwardPlanes) {
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  const auto append = [&](const DepthwiseGeometry& geometry, const BackwardFusion& fusion) {
    cases.push_back({GetParam().dtype, geometry, fusion, Memories::all(Memory::contiguous)});
  };
  for (const DepthwiseGeometry& geometry : plane_geometries()) {
    append(geometry, {.grad_x = false});
    append(geometry, {.grad_weight = false, .grad_bias = false});
  }
  for (const std::int64_t kernel : {3, 5}) {  // large planes that cannot be cut
    append({{1, 64, 50, 56}, centered(kernel, 2)}, {.grad_x = false});
  }
  for (const auto& geometries : {plane_geometries(), dilated_plane_geometries()}) {  // all gradients at once
    for (const DepthwiseGeometry& geometry : geometries) {
      append(geometry, {});
      append(geometry, {.gradient_prologue = true});
      append(geometry, {.gradient_prologue = true, .grad_bias = false});
    }
  }
  for (const char* role : {kBackwardRole, kInputRole, kWeightRole}) {
    const int runs = verify_backward_by_each(cases, {role}, {"hopper_planes", "forward_hopper_planes"});
    EXPECT_EQ(runs > 0, has_hopper(GetParam().dtype)) << role;
  }
}

TEST_P(DepthwiseGpu, BackwardRandom) {
  align_tensors(false);
  verify_backward_by_all(backward_random_cases(GetParam().dtype, random_depthwise));
}

}  // namespace
}  // namespace fusedsc::reference
