/// The depthwise GPU kernels, with all that is around them.
#include "fusedsc/backward/depthwise_direct_launch.h"
#include "fusedsc/common/gpu/depthwise_direct_use.h"
#include "fusedsc/forward/depthwise_direct_launch.h"
#include "gpu/gpu_under_test.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"

namespace fusedsc::reference {
namespace {

/// But for those of small problems, which most of these are.
class DepthwiseGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    gpu::use_depthwise_direct(gpu::DirectUse::never);
  }
  void TearDown() override {
    gpu::use_depthwise_direct(gpu::DirectUse::where_it_suits);
    OnGpu::TearDown();
  }

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
    edges.push_back({{1, 2, 5, 9}, centered(121)});  // a tile of it is larger than block memory
    edges.push_back({{2, 3, 11, 12}, {{3, 3}, {2, 2}, {3, 3}, {3, 3, 3, 3}}});  // stride and dilation without a divisor
    return edges;
  }

  // For the seams.
  const DepthwiseGeometry stride_one = {{2, 20, 8, 13}, centered(3)};
  const DepthwiseGeometry multiplied = {{2, 19, 8, 13}, centered(3, 2), 2};
  const DepthwiseGeometry stride_two = {{2, 8, 9, 10}, centered(3, 2)};
  const DepthwiseGeometry stride_three = {{2, 8, 17, 16}, centered(3, 3)};
};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseGpu, testing::ValuesIn(gpu_targets()), testing::PrintToStringParamName());

TEST_P(DepthwiseGpu, Edges) {
  for_each_case(forward_edge_cases(GetParam().dtype, edges()), verify_forward<DepthwiseGeometry>);
}

TEST_P(DepthwiseGpu, Seams) {
  for_each_case(forward_seam_cases(GetParam().dtype, stride_one, multiplied), verify_forward<DepthwiseGeometry>);
  for_each_case(forward_seam_cases(GetParam().dtype, stride_two, stride_one), verify_forward<DepthwiseGeometry>);
  for_each_case(forward_seam_cases(GetParam().dtype, stride_three, multiplied), verify_forward<DepthwiseGeometry>);
}

/// Enough of channels that the copy engine can take, and images whose columns fill its tiles, or do not.
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
  return geometries;
}

std::vector<ForwardCase<DepthwiseGeometry>> tile_cases(DataType dtype) {
  std::vector<ForwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : tile_geometries()) {
    for (ForwardSeams seams :
         {ForwardSeams{},
          {.output = ForwardSeams::Output::statistics},
          {.prologue = true, .activation = Activation::relu6, .output = ForwardSeams::Output::statistics},
          {.bias = true,
          .activation = Activation::silu,
          .output = ForwardSeams::Output::epilogue,
          .epilogue_activation = Activation::relu,
          .residual = true}}) {
      cases.push_back({dtype, geometry, seams, Memories::all(Memory::channels_last)});
    }
  }
  return cases;
}

TEST_P(DepthwiseGpu, Tiles) { for_each_case(tile_cases(GetParam().dtype), verify_forward<DepthwiseGeometry>); }

/// Infinities and NaNs in some channels of x, at some positions of each.
Array with_wild_elements(const Array& x, Array& wild) {
  Array result = x;
  wild = Array(x.sizes);
  const auto put = [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, double value) {
    result.at(n, c, h, w).value = value;
    wild.at(n, c, h, w).value = 1;
  };
  const Sizes& size = x.sizes;
  put(0, 3, 0, 0, HUGE_VAL);
  put(0, 9, size[2] / 2, size[3] / 2, NAN);
  put(size[0] - 1, size[1] - 2, size[2] - 1, size[3] - 1, -HUGE_VAL);
  return result;
}

/// What is not finite in one channel stays there, and in the outputs that see it.
void verify_isolation(const ForwardCase<DepthwiseGeometry>& problem) {
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  const Precision precision(problem.dtype);
  const Array raw = tensors.raw_output(problem), expected = tensors.output(problem, raw);
  Array wild, ones(tensors.weight.sizes());
  for (Bounded& element : ones.elements) element.value = 1;
  tensors.x.fill(with_wild_elements(tensors.x.values(), wild));
  const Array affected = problem.geometry.forward(precision, wild, ones, {});
  const auto arguments = tensors.arguments(problem);
  run(DepthwiseGeometry::kForward, arguments);

  const Array y = tensors.y.values();
  std::vector<bool> is_wild(static_cast<std::size_t>(y.sizes[1]));
  for_each_index(y.sizes, [&](auto n, auto c, auto h, auto w) {
    const double value = y.at(n, c, h, w).value;
    if (affected.at(n, c, h, w).value > 0) {
      is_wild[static_cast<std::size_t>(c)] = true;
      return;
    }
    const Bounded bound = stored(precision, expected.at(n, c, h, w));
    ASSERT_LE(std::abs(value - bound.value), bound.error) << "[" << n << ", " << c << ", " << h << ", " << w << "]";
  });
  for (std::size_t c = 0; problem.has_statistics() && c < is_wild.size(); ++c) {
    const Vector mean = moments(precision, raw).mean, actual = tensors.mean.values();
    if (!is_wild[c]) ASSERT_LE(std::abs(actual[c].value - mean[c].value), mean[c].error) << "mean of channel " << c;
  }
}

TEST_P(DepthwiseGpu, ChannelsApart) {
  for (ForwardCase<DepthwiseGeometry> problem : tile_cases(GetParam().dtype)) {
    problem.seams.activation = Activation::identity;
    SCOPED_TRACE(testing::PrintToString(problem));
    verify_isolation(problem);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DepthwiseGpu, Random) {
  align_tensors(false);
  for_each_case(forward_random_cases(GetParam().dtype, random_depthwise), verify_forward<DepthwiseGeometry>);
}

TEST_P(DepthwiseGpu, BackwardEdges) {
  for_each_case(backward_edge_cases(GetParam().dtype, edges()), verify_backward<DepthwiseGeometry>);
}

TEST_P(DepthwiseGpu, BackwardSeams) {
  for_each_case(backward_seam_cases(GetParam().dtype, stride_one, multiplied), verify_backward<DepthwiseGeometry>);
  for_each_case(backward_seam_cases(GetParam().dtype, stride_two, stride_one), verify_backward<DepthwiseGeometry>);
}

/// Both gradients of windows for which there may be a kernel that computes them together, with what it takes of seams.
std::vector<BackwardCase<DepthwiseGeometry>> joint_cases(DataType dtype) {
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
    BackwardSeams seams{.grad_bias = false};
    cases.push_back({dtype, geometry, seams, Memories::all(Memory::channels_last)});
    seams.gradient_prologue = true;
    cases.push_back({dtype, geometry, seams, Memories::all(Memory::channels_last)});
    seams.prologue = true;
    for (const Activation activation : kActivations) {
      seams.activation = activation;
      seams.sums = activation != Activation::identity;
      seams.gradient_prologue = activation != Activation::relu;
      cases.push_back({dtype, geometry, seams, Memories::all(Memory::channels_last)});
    }
  }
  return cases;
}

TEST_P(DepthwiseGpu, BackwardJoint) {
  for_each_case(joint_cases(GetParam().dtype), verify_backward<DepthwiseGeometry>);
}

/// One gradient alone.
std::vector<BackwardCase<DepthwiseGeometry>> backward_tile_cases(DataType dtype) {
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : tile_geometries()) {
    for (const BackwardSeams& seams :
         {BackwardSeams{.grad_x = false, .grad_bias = false}, BackwardSeams{.grad_x = false, .grad_weight = false},
          BackwardSeams{.grad_weight = false, .grad_bias = false},
          BackwardSeams{.grad_add = true, .grad_weight = false, .grad_bias = false}}) {
      cases.push_back({dtype, geometry, seams, Memories::all(Memory::channels_last)});
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
    const BackwardSeams seams{.grad_x = false, .grad_bias = false};
    const BackwardCase<DepthwiseGeometry> problem{GetParam().dtype, geometry, seams,
                                                  Memories::all(Memory::channels_last)};
    SCOPED_TRACE(testing::PrintToString(problem));
    verify_isolation(problem);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DepthwiseGpu, BackwardTiles) {
  for_each_case(backward_tile_cases(GetParam().dtype), verify_backward<DepthwiseGeometry>);
}

/// Enough images for the tiles that large batches have: forward, and gradients of weight and bias.
TEST_P(DepthwiseGpu, ManyImages) {
  const Sizes one[] = {{64, 40, 4, 28},  {64, 72, 2, 50},  {33, 408, 3, 7},
                       {32, 416, 3, 14}, {65, 448, 3, 13}, {67, 40, 5, 7}},
              two[] = {{64, 72, 5, 26}, {65, 64, 4, 50}, {64, 136, 5, 27}};
  std::vector<DepthwiseGeometry> geometries;
  for (const Sizes& x : one) geometries.push_back({x, centered(3, 1)});
  for (const Sizes& x : two) geometries.insert(geometries.end(), {{x, centered(3, 2)}, {x, centered(5, 2)}});
  for (const DepthwiseGeometry& geometry : geometries) {
    const Memories memories = Memories::all(Memory::channels_last);
    for_each_case(std::vector<ForwardCase<DepthwiseGeometry>>{{GetParam().dtype, geometry, {}, memories}},
                  verify_forward<DepthwiseGeometry>);
    for_each_case(
        std::vector<BackwardCase<DepthwiseGeometry>>{{GetParam().dtype, geometry, {.grad_x = false}, memories}},
        verify_backward<DepthwiseGeometry>);
  }
}

/// Likewise, gradients of weights alone: enough for a GPU's patches, and for clusters of blocks.
TEST_P(DepthwiseGpu, ManyImagesOfWeights) {
  const DepthwiseGeometry geometries[] = {
      {{64, 40, 9, 28}, centered(3)}, {{64, 40, 9, 28}, centered(5)}, {{33, 24, 13, 56}, centered(3, 2)}};
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  for (const DepthwiseGeometry& geometry : geometries) {
    cases.push_back({GetParam().dtype, geometry, {.grad_x = false}, Memories::all(Memory::channels_last)});
  }
  for_each_case(cases, verify_backward<DepthwiseGeometry>);
}

/// Likewise, forward in training: tiles of their own.
TEST_P(DepthwiseGpu, ManyImagesInTraining) {
  std::vector<ForwardCase<DepthwiseGeometry>> cases;
  const auto add = [&](const Sizes& x, std::int64_t stride, bool has_prologue) {
    const ForwardSeams seams{.prologue = has_prologue, .output = ForwardSeams::Output::statistics};
    cases.push_back({GetParam().dtype, {x, centered(3, stride)}, seams, Memories::all(Memory::channels_last)});
  };
  for (const std::int64_t width : {14, 50, 66}) add({128, 32, 2, width}, 1, false);
  add({32, 32, 5, 14}, 2, false);
  add({128, 32, 3, 14}, 2, true);
  for_each_case(cases, verify_forward<DepthwiseGeometry>);
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
    const BackwardSeams seams{.grad_weight = false, .grad_bias = false};
    cases.push_back({GetParam().dtype, geometry, seams, Memories::all(Memory::channels_last)});
  }
  for_each_case(cases, verify_backward<DepthwiseGeometry>);
}

/// What is not finite in one channel of grad_y stays there, and in the elements of grad_x that it reaches.
TEST_P(DepthwiseGpu, BackwardInputChannelsApart) {
  const Precision precision(GetParam().dtype);
  for (const DepthwiseGeometry& geometry : wide_geometries()) {
    const BackwardCase<DepthwiseGeometry> problem{
        GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, Memories::all(Memory::channels_last)};
    SCOPED_TRACE(testing::PrintToString(problem));
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
      for (const ForwardSeams& seams : {ForwardSeams{}, ForwardSeams{.bias = true},
                                        ForwardSeams{.bias = true, .output = ForwardSeams::Output::statistics}}) {
        cases.push_back({GetParam().dtype, geometry, seams, Memories::all(Memory::contiguous)});
      }
    }
  }
  for_each_case(cases, verify_forward<DepthwiseGeometry>);
}

TEST_P(DepthwiseGpu, BackwardPlanes) {
  std::vector<BackwardCase<DepthwiseGeometry>> cases;
  const auto append = [&](const DepthwiseGeometry& geometry, const BackwardSeams& seams) {
    cases.push_back({GetParam().dtype, geometry, seams, Memories::all(Memory::contiguous)});
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
  for_each_case(cases, verify_backward<DepthwiseGeometry>);
}

TEST_P(DepthwiseGpu, BackwardRandom) {
  align_tensors(false);
  for_each_case(backward_random_cases(GetParam().dtype, random_depthwise), verify_backward<DepthwiseGeometry>);
}

// ---------------------------------------------------------------------------------------- kernels of small problems

class DepthwiseDirectGpu : public DepthwiseGpu {
 protected:
  using Forward = ForwardCase<DepthwiseGeometry>;
  using Backward = BackwardCase<DepthwiseGeometry>;

  void SetUp() override {
    DepthwiseGpu::SetUp();
    gpu::use_depthwise_direct(gpu::DirectUse::wherever_it_can);
  }

  static bool suits(const Forward& problem) {
    ForwardTensors<DepthwiseGeometry> tensors(problem);
    return gpu::suits_depthwise_direct(tensors.arguments(problem));
  }
  /// Of stride 2: at stride 1 the input gradient is a forward pass.
  static bool suits(const Backward& problem) {
    BackwardTensors<DepthwiseGeometry> tensors(problem);
    return gpu::suits_depthwise_direct_input(tensors.arguments(problem));
  }
  static Backward input_gradient(const DepthwiseGeometry& geometry, const Memories& memories) {
    return {GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, memories};
  }

  static std::vector<DepthwiseGeometry> geometries() {
    std::vector<DepthwiseGeometry> geometries;
    for (const std::int64_t kernel : {3, 5, 7}) {
      for (const std::int64_t stride : {1, 2, 3}) {
        for (const std::int64_t channels : {1, 3, 6, 20, 56}) {  // 56: of any vector, several blocks' or one's
          geometries.push_back({{2, channels, 9, 7 + channels % 5}, centered(kernel, stride)});
        }
        const auto window = [&](const Padding& padding) {
          return Window{{kernel, kernel}, {stride, stride}, {1, 1}, padding};
        };
        geometries.push_back({{1, 24, 8, 9}, window({})});
        geometries.push_back({{1, 24, 8, 9}, window({5, 4, 3, 6})});    // on four sides
        geometries.push_back({{2, 8, 2, 3}, window({9, 10, 12, 11})});  // windows wholly outside of the image
        geometries.push_back({{3, 16, 1, 1}, window({6, 6, 7, 7})});    // an image of one element
        geometries.push_back({{1, 264, 10, 8}, window({1, 0, 0, 1})});  // channel blocks that are not full
        geometries.push_back({{17, 8, 7, 7}, window({3, 3, 3, 3})});    // many images
      }
      geometries.push_back({{2, 12, 9, 8}, {{kernel, kernel}, {1, 2}, {1, 1}, {3, 2, 1, 3}}});
      geometries.push_back({{2, 12, 9, 8}, {{kernel, kernel}, {2, 1}, {1, 1}, {2, 3, 3, 1}}});
    }
    return geometries;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, DepthwiseDirectGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

/// Every kernel.
TEST_P(DepthwiseDirectGpu, Instances) {
  const DataType dtype = GetParam().dtype;
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    const bool is_last = memory == Memory::channels_last;
    for (const std::int64_t kernel : {3, 5, 7}) {
      for (const std::int64_t stride : {1, 2}) {
        for (const int channels : {1, 2, 4, 8}) {
          for (const int rows : {1, 2, 4}) {
            const DepthwiseGeometry geometry{{2, 40, 11, 9}, centered(kernel, stride)};
            const Memories memories = Memories::all(memory);
            const bool is_vector = is_last ? channels * bytes <= 16 : channels == 1, is_double = bytes == 8;
            gpu::use_depthwise_direct(gpu::DirectUse::wherever_it_can, channels, rows);
            SCOPED_TRACE(testing::Message() << channels << " channels, " << rows << " rows");
            const Forward forward{dtype, geometry, {.bias = rows == 1}, memories};
            const std::int64_t most_of_two_rows = kernel == 3 ? 16 : kernel == 5 ? 8 : 0;
            const bool has_two_rows = !is_last || (channels * bytes > 2 && channels * bytes <= most_of_two_rows);
            const bool has_rows =
                rows == 1 || (!is_double && (rows == 2 ? has_two_rows : rows == 4 && !is_last && kernel < 7));
            const bool has_vector = is_vector && (kernel < 7 || !is_last || channels * bytes <= 8);
            if (!is_last && channels > 1) continue;
            ASSERT_EQ(suits(forward), has_vector && has_rows);
            const Backward backward = input_gradient(geometry, memories);
            if (stride == 2) {
              ASSERT_EQ(suits(backward), has_vector && (rows == 1 || (rows == 2 && !is_last && !is_double)));
            }
            if (suits(forward)) for_each_case(std::vector{forward}, verify_forward<DepthwiseGeometry>);
            if (stride == 1 || suits(backward)) {
              for_each_case(std::vector{backward}, verify_backward<DepthwiseGeometry>);
            }
          }
        }
      }
    }
  }
}

TEST_P(DepthwiseDirectGpu, Edges) {
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      const Memories memories = Memories::all(memory);
      const std::vector<Forward> plain = {{GetParam().dtype, geometry, {}, memories},
                                          {GetParam().dtype, geometry, {.bias = true}, memories}};
      ASSERT_TRUE(suits(plain[0])) << geometry;
      for_each_case(plain, verify_forward<DepthwiseGeometry>);
      const Backward gradient = input_gradient(geometry, memories);
      ASSERT_EQ(suits(gradient), geometry.window.stride == (std::array<std::int64_t, 2>{2, 2})) << geometry;
      for_each_case(std::vector{gradient}, verify_backward<DepthwiseGeometry>);
    }
  }
}

/// Tensors of any strides, which need not be alike, and not aligned either.
TEST_P(DepthwiseDirectGpu, Memories) {
  align_tensors(false);
  Random random(3);
  for (const DepthwiseGeometry& geometry : geometries()) {
    Memories memories = Memories::random(random);
    memories.weight = Memory::contiguous;
    const Forward plain{GetParam().dtype, geometry, {.bias = coin(random)}, memories};
    ASSERT_TRUE(suits(plain));
    for_each_case(std::vector{plain}, verify_forward<DepthwiseGeometry>);
    const Backward gradient = input_gradient(geometry, memories);
    for_each_case(std::vector{gradient}, verify_backward<DepthwiseGeometry>);
  }
}

/// Masks, too, keep what is not finite where it is.
TEST_P(DepthwiseDirectGpu, ChannelsApart) {
  for (const DepthwiseGeometry& geometry : geometries()) {
    if (geometry.x[1] < 12) continue;
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      const Forward problem{GetParam().dtype, geometry, {}, Memories::all(memory)};
      SCOPED_TRACE(testing::PrintToString(problem));
      verify_isolation(problem);
      if (HasFatalFailure()) return;
    }
  }
}

/// What is left to other kernels.
TEST_P(DepthwiseDirectGpu, Others) {
  const auto contiguous = Memories::all(Memory::contiguous);
  const DepthwiseGeometry geometry{{1, 8, 9, 10}, centered(3)};
  const auto suits_with = [&](const ForwardSeams& seams) {
    return suits(Forward{GetParam().dtype, geometry, seams, contiguous});
  };
  const auto suits_window = [&](const Window& window, std::int64_t multiplier = 1) {
    return suits(Forward{GetParam().dtype, {geometry.x, window, multiplier}, {}, contiguous});
  };
  EXPECT_TRUE(suits_with({}));
  EXPECT_FALSE(suits_with({.prologue = true}));
  EXPECT_FALSE(suits_with({.output = ForwardSeams::Output::statistics}));
  EXPECT_FALSE(suits_with({.output = ForwardSeams::Output::epilogue}));
  EXPECT_FALSE(suits_window(centered(4)));
  EXPECT_FALSE(suits_window({{3, 5}, {1, 1}, {1, 1}, {2, 2, 1, 1}}));
  EXPECT_FALSE(suits_window({{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}));
  EXPECT_FALSE(suits_window(centered(3), 2));
  Memories spread = contiguous;
  spread.weight = Memory::spread;
  EXPECT_FALSE(suits(Forward{GetParam().dtype, geometry, {}, spread}));
}

/// They come before what Hopper GPUs have for more work.
TEST_P(DepthwiseDirectGpu, SmallProblems) {
  gpu::use_depthwise_direct(gpu::DirectUse::where_it_suits);
  const auto problem_of = [](std::int64_t elements) {
    const DepthwiseGeometry geometry{{elements / (40 * 49), 40, 7, 7}, centered(3)};
    return Forward{GetParam().dtype, geometry, {}, Memories::all(Memory::channels_last)};
  };
  const std::int64_t unit = std::int64_t{1000} * gpu_multiprocessors();
  EXPECT_TRUE(suits(problem_of(unit)));
  EXPECT_FALSE(suits(problem_of(20 * unit)));
  if (size_of(GetParam().dtype) != 2) return;
  const Forward problem = problem_of(7 * unit);
  ForwardTensors<DepthwiseGeometry> tensors(problem);
  EXPECT_TRUE(suits(problem));
  for (const Candidate& candidate : explain_depthwise_conv2d(tensors.arguments(problem))) {
    EXPECT_EQ(candidate.taken, candidate.implementation == "gpu");
    if (candidate.implementation == "gpu_hopper") EXPECT_NE(candidate.why_not, "");
  }
}

}  // namespace
}  // namespace fusedsc::reference
