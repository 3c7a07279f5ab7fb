/// Every argument that is wrong is refused by a sentence that begins with its name.
#include <limits>

#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"
#include "ops/mistakes.h"
#include "ops/pointwise_cases.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

/// What both families' forward passes refuse alike.
template <class Arguments>
Mistakes<Arguments> forward_mistakes() {
  return {
      {"x", [](Arguments& a) { a.x.data = nullptr; }},
      {"x", [](Arguments& a) { a.x.strides[3] = -1; }},
      {"weight", [](Arguments& a) { a.weight.data = nullptr; }},
      {"weight", [](Arguments& a) { a.weight.dtype = DataType::float64; }},
      {"weight", [](Arguments& a) { a.weight.sizes[1] = 2; }},
      {"weight", [](Arguments& a) { a.weight.strides[0] = -3; }},
      {"y", [](Arguments& a) { a.y.sizes[0] = 3; }},
      {"y", [](Arguments& a) { a.y.sizes[2] = 99; }},
      {"y", [](Arguments& a) { a.y.dtype = DataType::float16; }},
      {"y", [](Arguments& a) { a.y.strides[3] = 0; }},
      {"y", [](Arguments& a) { a.y.strides[2] = 1; }},
      {"y", [](Arguments& a) { a.y.strides[1] = -1; }},
      {"y", [](Arguments& a) { a.y.data = inside(a.x.data); }},
      {"y", [](Arguments& a) { a.y.data = inside(a.weight.data); }},
      {"y", [](Arguments& a) { a.y.data = inside(a.bias.data); }},
      {"y", [](Arguments& a) { a.y.data = inside(a.prologue.shift.data); }},
      {"y", [](Arguments& a) { a.y.data = nullptr; }},
      {"bias", [](Arguments& a) { a.bias.size += 1; }},
      {"bias", [](Arguments& a) { a.bias.dtype = DataType::float64; }},
      {"prologue.scale", [](Arguments& a) { a.prologue.scale.size = 1; }},
      {"prologue.shift", [](Arguments& a) { a.prologue.shift.dtype = DataType::float16; }},
  };
}

template <class Arguments>
Mistakes<Arguments> epilogue_mistakes() {
  return {
      {"epilogue.scale", [](Arguments& a) { a.epilogue.scale.size += 2; }},
      {"epilogue.shift", [](Arguments& a) { a.epilogue.shift.dtype = DataType::float64; }},
      {"epilogue.residual", [](Arguments& a) { a.epilogue.residual.sizes[3] += 1; }},
      {"epilogue.residual", [](Arguments& a) { a.epilogue.residual.dtype = DataType::float64; }},
      {"epilogue.residual", [](Arguments& a) { a.epilogue.residual.strides[0] = -1; }},
      {"y", [](Arguments& a) { a.y.data = inside(a.epilogue.residual.data); }},
      {"epilogue",
       [](Arguments& a) {
         a.statistics = {{inside(a.x.data), DataType::float32, a.y.sizes[1]},
                         {inside(a.x.data), DataType::float32, a.y.sizes[1]}};
       }},
  };
}

template <class Arguments>
Mistakes<Arguments> statistics_mistakes() {
  return {
      {"statistics.mean", [](Arguments& a) { a.statistics.mean = {}; }},
      {"statistics.mean", [](Arguments& a) { a.statistics.mean.size += 1; }},
      {"statistics.mean", [](Arguments& a) { a.statistics.mean.data = inside(a.x.data); }},
      {"statistics.m2", [](Arguments& a) { a.statistics.m2 = {}; }},
      {"statistics.m2", [](Arguments& a) { a.statistics.m2.dtype = DataType::float64; }},
      {"statistics.m2", [](Arguments& a) { a.statistics.m2.data = inside(a.statistics.mean.data); }},
      {"statistics.normaliser.weight", [](Arguments& a) { a.statistics.normaliser.weight.size += 1; }},
      {"statistics.normaliser.bias", [](Arguments& a) { a.statistics.normaliser.bias.dtype = DataType::float64; }},
      {"statistics.normaliser.invstd", [](Arguments& a) { a.statistics.normaliser.invstd.size += 1; }},
      {"statistics.normaliser.variance", [](Arguments& a) { a.statistics.normaliser.variance.size -= 1; }},
      {"statistics.normaliser.scale", [](Arguments& a) { a.statistics.normaliser.scale.size += 1; }},
      {"statistics.normaliser.shift", [](Arguments& a) { a.statistics.normaliser.shift.dtype = DataType::float64; }},
      {"statistics.normaliser.eps", [](Arguments& a) { a.statistics.normaliser.eps = -1; }},
  };
}

/// What both families' backward passes refuse alike.
template <class Arguments>
Mistakes<Arguments> backward_mistakes() {
  return {
      {"x", [](Arguments& a) { a.x.data = nullptr; }},
      {"weight", [](Arguments& a) { a.weight.dtype = DataType::float64; }},
      {"weight", [](Arguments& a) { a.weight.sizes[1] = 2; }},
      {"grad_y", [](Arguments& a) { a.grad_y.data = nullptr; }},
      {"grad_y", [](Arguments& a) { a.grad_y.dtype = DataType::bfloat16; }},
      {"grad_y", [](Arguments& a) { a.grad_y.sizes[1] += 1; }},
      {"grad_y", [](Arguments& a) { a.grad_y.strides[2] = -1; }},
      {"prologue.scale", [](Arguments& a) { a.prologue.scale.size = 1; }},
      {"prologue.shift", [](Arguments& a) { a.prologue.shift.dtype = DataType::float16; }},
      {"gradient_prologue.grad_scale", [](Arguments& a) { a.gradient_prologue.grad_scale = {}; }},
      {"gradient_prologue.output_scale", [](Arguments& a) { a.gradient_prologue.output_scale.size = 1; }},
      {"gradient_prologue.offset", [](Arguments& a) { a.gradient_prologue.offset.dtype = DataType::float64; }},
      {"gradient_prologue.output", [](Arguments& a) { a.gradient_prologue.output = {}; }},
      {"gradient_prologue.output", [](Arguments& a) { a.gradient_prologue.output.sizes[0] = 9; }},
      {"sums.mean", [](Arguments& a) { a.sums.mean = {}; }},
      {"sums.grad", [](Arguments& a) { a.sums.grad.size = 1; }},
      {"sums.grad_times_centered", [](Arguments& a) { a.sums.grad_times_centered.dtype = DataType::float64; }},
      {"sums", [](Arguments& a) { a.grad_x = {}; }},
      {"sums", [](Arguments& a) { a.prologue = {}; }},
      {"grad_add", [](Arguments& a) { a.grad_add = a.x; }},
      {"grad_x", [](Arguments& a) { a.grad_x.sizes[2] += 1; }},
      {"grad_x", [](Arguments& a) { a.grad_x.dtype = DataType::float64; }},
      {"grad_x", [](Arguments& a) { a.grad_x.strides[0] = 0; }},
      {"grad_x", [](Arguments& a) { a.grad_x.data = inside(a.grad_y.data); }},
      {"grad_x", [](Arguments& a) { a.grad_x.data = inside(a.x.data); }},
      {"grad_weight", [](Arguments& a) { a.grad_weight.sizes[0] += 1; }},
      {"grad_weight", [](Arguments& a) { a.grad_weight.strides[0] = 0; }},
      {"grad_weight", [](Arguments& a) { a.grad_weight.data = inside(a.weight.data); }},
      {"grad_weight", [](Arguments& a) { a.grad_weight.data = inside(a.grad_x.data); }},
      {"grad_bias", [](Arguments& a) { a.grad_bias.size += 1; }},
      {"grad_bias", [](Arguments& a) { a.grad_bias.dtype = DataType::float64; }},
      {"grad_bias", [](Arguments& a) { a.grad_bias.data = inside(a.sums.mean.data); }},
  };
}

template <class Arguments>
Mistakes<Arguments> grad_add_mistakes() {
  return {
      {"grad_add", [](Arguments& a) { a.grad_add.sizes[1] += 1; }},
      {"grad_add", [](Arguments& a) { a.grad_add.dtype = DataType::float64; }},
      {"grad_add", [](Arguments& a) { a.grad_x = {}; }},
      {"grad_x", [](Arguments& a) { a.grad_x.data = inside(a.grad_add.data); }},
  };
}

template <class Arguments>
Mistakes<Arguments> window_mistakes() {
  return {
      {"weight", [](Arguments& a) { a.weight.sizes[0] += 1; }},
      {"weight", [](Arguments& a) { a.weight.sizes[0] = 0; }},
      {"window", [](Arguments& a) { a.window.kernel[0] = 5; }},
      {"kernel",
       [](Arguments& a) {
         a.window.padding = {};
         a.x.sizes[2] = 2;
       }},
      {"kernel",
       [](Arguments& a) {
         a.window.dilation = {9, 9};
       }},
      {"stride", [](Arguments& a) { a.window.stride[0] = 0; }},
      {"stride", [](Arguments& a) { a.window.stride[1] = -1; }},
      {"dilation", [](Arguments& a) { a.window.dilation[1] = 0; }},
      {"padding", [](Arguments& a) { a.window.padding.left = -1; }},
  };
}

template <class Arguments>
Mistakes<Arguments> group_mistakes() {
  return {
      {"groups", [](Arguments& a) { a.groups = 0; }},          {"groups", [](Arguments& a) { a.groups = -2; }},
      {"groups", [](Arguments& a) { a.groups = 5; }},          {"weight", [](Arguments& a) { a.groups = 1; }},
      {"weight", [](Arguments& a) { a.weight.sizes[2] = 3; }}, {"weight", [](Arguments& a) { a.weight.sizes[0] = 0; }},
      {"x", [](Arguments& a) { a.x.sizes[1] = 0; }},
  };
}

template <class Arguments>
Mistakes<Arguments> sliding_channel_mistakes() {
  return {
      {"groups", [](Arguments& a) { a.groups = 0; }},
      {"groups", [](Arguments& a) { a.groups = -2; }},
      {"groups", [](Arguments& a) { a.groups = 9; }},
      {"weight", [](Arguments& a) { a.groups = 3; }},
      {"overlap", [](Arguments& a) { a.overlap = -0.1; }},
      {"overlap", [](Arguments& a) { a.overlap = 1; }},
      {"overlap", [](Arguments& a) { a.overlap = std::numeric_limits<double>::quiet_NaN(); }},
      {"weight", [](Arguments& a) { a.weight.sizes[2] = 3; }},
      {"weight", [](Arguments& a) { a.weight.sizes[0] = 0; }},
      {"x", [](Arguments& a) { a.x.sizes[1] = 0; }},
  };
}

const DepthwiseGeometry kDepthwise{{2, 8, 6, 7}, {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}}};
const PointwiseGeometry kPointwise{{2, 8, 6, 7}, 12, 2};
const SlidingChannelGeometry kSlidingChannel{{2, 8, 6, 7}, 12, 2, 0.25};

template <class Geometry>
void verify_forward_mistakes(const Geometry& geometry,
                             const Mistakes<typename decltype(Geometry::kForward)::Arguments>& of_its_own) {
  using enum ForwardFusion::Output;
  const auto verify_with = [&](const ForwardFusion& fusion, const auto&... mistakes) {
    const ForwardCase<Geometry> problem{DataType::float32, geometry, fusion, {}};
    ForwardTensors<Geometry> tensors(problem);
    (verify_mistakes(Geometry::kForward, tensors.arguments(problem), mistakes), ...);
    verify_execution(Geometry::kForward, tensors.arguments(problem));
  };
  using Arguments = typename decltype(Geometry::kForward)::Arguments;
  verify_with({.bias = true, .prologue = true}, forward_mistakes<Arguments>(), of_its_own);
  verify_with({.output = epilogue, .residual = true}, epilogue_mistakes<Arguments>());
  verify_with({.output = statistics}, statistics_mistakes<Arguments>());
}

template <class Geometry>
void verify_backward_mistakes(const Geometry& geometry,
                              const Mistakes<typename decltype(Geometry::kBackward)::Arguments>& of_its_own) {
  const auto verify_with = [&](const BackwardFusion& fusion, const auto&... mistakes) {
    const BackwardCase<Geometry> problem{DataType::float32, geometry, fusion, {}};
    BackwardTensors<Geometry> tensors(problem);
    (verify_mistakes(Geometry::kBackward, tensors.arguments(problem), mistakes), ...);
    verify_execution(Geometry::kBackward, tensors.arguments(problem));
  };
  using Arguments = typename decltype(Geometry::kBackward)::Arguments;
  verify_with({.prologue = true, .gradient_prologue = true, .sums = true}, backward_mistakes<Arguments>(), of_its_own);
  verify_with({.grad_add = true}, grad_add_mistakes<Arguments>());
}

TEST(Checks, Depthwise) { verify_forward_mistakes(kDepthwise, window_mistakes<DepthwiseArguments>()); }
TEST(Checks, Pointwise) { verify_forward_mistakes(kPointwise, group_mistakes<PointwiseArguments>()); }
TEST(Checks, SlidingChannel) {
  verify_forward_mistakes(kSlidingChannel, sliding_channel_mistakes<SlidingChannelArguments>());
}
TEST(Checks, DepthwiseBackward) { verify_backward_mistakes(kDepthwise, window_mistakes<DepthwiseBackwardArguments>()); }
TEST(Checks, PointwiseBackward) { verify_backward_mistakes(kPointwise, group_mistakes<PointwiseBackwardArguments>()); }

TEST(Checks, SlidingChannelBackward) {
  verify_backward_mistakes(kSlidingChannel, sliding_channel_mistakes<SlidingChannelBackwardArguments>());
}

TEST(Checks, EveryImplementationIsExplained) {
  const ForwardCase<DepthwiseGeometry> depthwise{DataType::float32, kDepthwise, {}, {}};
  const ForwardCase<PointwiseGeometry> pointwise{DataType::float32, kPointwise, {}, {}};
  const ForwardCase<SlidingChannelGeometry> sliding_channel{DataType::float32, kSlidingChannel, {}, {}};
  const BackwardCase<DepthwiseGeometry> depthwise_backward{DataType::float32, kDepthwise, {}, {}};
  const BackwardCase<PointwiseGeometry> pointwise_backward{DataType::float32, kPointwise, {}, {}};
  const BackwardCase<SlidingChannelGeometry> sliding_channel_backward{DataType::float32, kSlidingChannel, {}, {}};
  const std::vector<std::vector<Candidate>> lists = {
      explain_depthwise_conv2d(ForwardTensors(depthwise).arguments(depthwise)),
      explain_pointwise_conv2d(ForwardTensors(pointwise).arguments(pointwise)),
      explain_sliding_channel_conv2d(ForwardTensors(sliding_channel).arguments(sliding_channel)),
      explain_sliding_channel_conv2d_backward(
          BackwardTensors(sliding_channel_backward).arguments(sliding_channel_backward)),
      explain_depthwise_conv2d_backward(BackwardTensors(depthwise_backward).arguments(depthwise_backward)),
      explain_pointwise_conv2d_backward(BackwardTensors(pointwise_backward).arguments(pointwise_backward))};
  for (const std::vector<Candidate>& list : lists) {
    int taken = 0;
    for (const Candidate& candidate : list) {
      taken += candidate.taken;
      EXPECT_FALSE(candidate.implementation.empty());
      EXPECT_TRUE(!candidate.taken || candidate.why_not.empty());
    }
    EXPECT_EQ(taken, 1);
  }
}

}  // namespace
}  // namespace fusedsc::reference
