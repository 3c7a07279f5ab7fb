/// Sliding-channel convolution of contiguous float tensors with TensorFloat-32, window by window.
#include "gpu/gpu_under_test.h"
#include "ops/backward_case.h"
#include "ops/forward_case.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

using Forward = ForwardCase<SlidingChannelGeometry>;
using Backward = BackwardCase<SlidingChannelGeometry>;

/// What is said of the entry; null: the program has none.
template <class Candidates>
const Candidate* find_planes(const Candidates& candidates) {
  for (const Candidate& candidate : candidates) {
    if (candidate.implementation == "hopper_tf32_planes") return &candidate;
  }
  return nullptr;
}

class SlidingChannelPlanesGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (GetParam().dtype != DataType::float32) GTEST_SKIP() << "for float32";
    if (GetParam().wave_size != 32) GTEST_SKIP() << "GPUs of this wave size have no such kernels";
  }

  static std::vector<SlidingChannelGeometry> geometries() {
    std::vector<SlidingChannelGeometry> geometries = {
        {{1, 32, 8, 8}, 64, 2, 0.5},    {{2, 64, 4, 8}, 128, 4, 0.25},   // windows of 16 channels
        {{2, 64, 6, 6}, 32, 8, 0.5},    {{2, 64, 4, 8}, 64, 1, 0.5},     // several windows in 8 channels; all of them
        {{3, 96, 2, 2}, 96, 3, 0.5},    {{5, 128, 4, 4}, 64, 8, 0.0},    // several images in a tile
        {{9, 32, 2, 4}, 32, 2, 0.75},   {{3, 32, 3, 4}, 64, 4, 0.5},     // likewise; planes of 3 pieces
        {{2, 64, 14, 14}, 160, 2, 0.5}, {{1, 64, 4, 12}, 288, 4, 0.75},  // more rows than a block has
        {{1, 288, 4, 12}, 32, 2, 0.5},  {{1, 32, 32, 33}, 32, 8, 0.5},   // and more positions
        {{1, 512, 2, 4}, 32, 2, 0.25},  {{1, 32, 2, 4}, 512, 2, 0.5},    // tiles of weights' gradients in groups
    };
    for (SlidingChannelGeometry& geometry : geometries) geometry.tf32 = true;
    return geometries;
  }

  static const Memories contiguous() { return Memories::all(Memory::contiguous); }
};
INSTANTIATE_TEST_SUITE_P(Targets, SlidingChannelPlanesGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(SlidingChannelPlanesGpu, Forward) {
  for (const SlidingChannelGeometry& geometry : geometries()) {
    const Forward problem{DataType::float32, geometry, {}, contiguous()};
    const auto candidates = explain_sliding_channel_conv2d(ForwardTensors(problem).arguments(problem));
    const Candidate* planes = find_planes(candidates);
    if (planes != nullptr) {
      EXPECT_TRUE(planes->taken) << planes->why_not;
    }
    verify_forward<SlidingChannelGeometry>(problem);
  }
}

TEST_P(SlidingChannelPlanesGpu, BothGradients) {
  for (const SlidingChannelGeometry& geometry : geometries()) {
    const Backward problem{DataType::float32, geometry, {.grad_bias = false}, contiguous()};
    const auto candidates = explain_sliding_channel_conv2d_backward(BackwardTensors(problem).arguments(problem));
    const Candidate* planes = find_planes(candidates);
    if (planes != nullptr) {
      EXPECT_TRUE(planes->taken) << planes->why_not;
    }
    verify_backward<SlidingChannelGeometry>(problem);
  }
}

TEST_P(SlidingChannelPlanesGpu, EachGradient) {
  const SlidingChannelGeometry geometry{{2, 64, 4, 8}, 128, 4, 0.25, true};
  const BackwardFusion fusion[] = {{.grad_weight = false, .grad_bias = false}, {.grad_x = false, .grad_bias = false}};
  for (const BackwardFusion& wanted : fusion) {
    verify_backward<SlidingChannelGeometry>({DataType::float32, geometry, wanted, contiguous()});
  }
}

/// Factors are rounded to TensorFloat-32, not cut off; contiguous, and as the pointwise kernels multiply channels_last
/// tensors by a weight that threads lay out, or a launch.
TEST_P(SlidingChannelPlanesGpu, Rounds) {
  std::vector<SlidingChannelGeometry> all = geometries();
  all.push_back({{2, 256, 6, 6}, 160, 2, 0.5, true});
  for (const SlidingChannelGeometry& geometry : all) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      verify_forward<SlidingChannelGeometry>(
          {DataType::float32, geometry, {.nearly_tf32 = true}, Memories::all(memory)});
      verify_backward<SlidingChannelGeometry>(
          {DataType::float32, geometry, {.grad_bias = false, .nearly_tf32 = true}, Memories::all(memory)});
    }
  }
}

TEST_P(SlidingChannelPlanesGpu, LeavesTheRest) {
  const SlidingChannelGeometry geometries[] = {
      {{2, 64, 7, 7}, 128, 2, 0.5, true},   // planes of no whole runs of 16 bytes
      {{2, 64, 4, 8}, 80, 2, 0.5, true},    // filters that are no multiple of 32
      {{2, 64, 4, 8}, 96, 8, 0.9, true},    // windows that not as many filters share
      {{2, 64, 4, 8}, 128, 2, 0.5, false},  // no TensorFloat-32
  };
  for (const SlidingChannelGeometry& geometry : geometries) {
    const Forward problem{DataType::float32, geometry, {}, contiguous()};
    const auto candidates = explain_sliding_channel_conv2d(ForwardTensors(problem).arguments(problem));
    const Candidate* planes = find_planes(candidates);
    if (planes != nullptr) {
      EXPECT_FALSE(planes->taken);
    }
    verify_forward<SlidingChannelGeometry>(problem);
    verify_backward<SlidingChannelGeometry>({DataType::float32, geometry, {}, contiguous()});
  }
}

}  // namespace
}  // namespace fusedsc::reference
