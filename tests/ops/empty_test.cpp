/// Tensors without elements: legal wherever the result is defined, with zero (not unwritten) sums.
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/empty_blocks.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

template <class Geometry>
void verify_empty_forward(const Geometry& geometry) {
  using enum ForwardFusion::Output;
  for (const ForwardFusion::Output output : {plain, epilogue, statistics}) {
    const ForwardCase<Geometry> problem{DataType::float32,
                                        geometry,
                                        {.bias = true, .prologue = true, .output = output},
                                        Memories::all(Memory::contiguous)};
    ForwardTensors<Geometry> tensors(problem);
    std::vector<Output> outputs{{"y", tensors.y, Array(geometry.y_sizes())}};
    if (output == statistics) {
      outputs.emplace_back("statistics.mean", tensors.mean, zeros(tensors.mean));
      outputs.emplace_back("statistics.m2", tensors.m2, zeros(tensors.m2));
    }
    verify(Geometry::kForward, tensors.arguments(problem), outputs);
  }
}

template <class Geometry>
void verify_empty_backward(const Geometry& geometry) {
  const BackwardFusion fusion{
      .prologue = true, .activation = Activation::relu, .gradient_prologue = true, .sums = true};
  for (const Memory memory : {Memory::contiguous, Memory::spread}) {
    const BackwardCase<Geometry> problem{DataType::float32, geometry, fusion, {memory, memory, memory, memory}};
    BackwardTensors<Geometry> tensors(problem);
    const std::vector<Output> outputs{
        {"grad_x", tensors.grad_x, Array(geometry.x)},
        {"grad_weight", tensors.grad_weight, Array(geometry.weight_sizes())},
        {"grad_bias", tensors.grad_bias, zeros(tensors.grad_bias)},
        {"sums.grad", tensors.sum_grad, zeros(tensors.sum_grad)},
        {"sums.grad_times_centered", tensors.sum_grad_times_centered, zeros(tensors.sum_grad_times_centered)}};
    verify(Geometry::kBackward, tensors.arguments(problem), outputs);
  }
}

const Window kThreeByThree = centered(3);

TEST(Empty, Depthwise) {
  for (const Sizes& x : {Sizes{0, 8, 5, 5}, Sizes{2, 0, 5, 5}}) {
    verify_empty_forward(DepthwiseGeometry{x, kThreeByThree});
    verify_empty_backward(DepthwiseGeometry{x, kThreeByThree});
  }
}

TEST(Empty, Pointwise) {
  for (const Sizes& x : {Sizes{0, 8, 5, 5}, Sizes{2, 8, 0, 5}, Sizes{2, 8, 5, 0}}) {
    verify_empty_forward(PointwiseGeometry{x, 12});
    verify_empty_backward(PointwiseGeometry{x, 12});
  }
}

TEST(Empty, SlidingChannel) {
  for (const Sizes& x : {Sizes{0, 8, 5, 5}, Sizes{2, 8, 0, 5}, Sizes{2, 8, 5, 0}}) {
    verify_empty_forward(SlidingChannelGeometry{x, 12});
    verify_empty_backward(SlidingChannelGeometry{x, 12});
  }
}

/// Nothing but padding: the input has no elements, the output has.
TEST(Empty, DepthwiseInputUnderPadding) {
  const DepthwiseGeometry geometry{{2, 19, 0, 6}, {{3, 3}, {1, 1}, {1, 1}, {1, 1, 2, 2}}};
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    ForwardFusion fusion{.bias = true};
    verify_forward<DepthwiseGeometry>({DataType::float32, geometry, fusion, Memories::all(memory)});
    fusion.output = ForwardFusion::Output::statistics;
    verify_forward<DepthwiseGeometry>({DataType::float32, geometry, fusion, Memories::all(memory)});
    verify_backward<DepthwiseGeometry>({DataType::float32, geometry, {}, Memories::all(memory)});
  }
}

TEST(Empty, DscBlock) { verify_empty_dsc_block(DataType::float32); }

}  // namespace
}  // namespace fusedsc::reference
