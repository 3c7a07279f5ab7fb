/// Sliding-channel convolution of 16-bit channels_last tensors on Hopper GPUs, window by window.
#include <cmath>

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
const Candidate* find_windows(const Candidates& candidates) {
  for (const Candidate& candidate : candidates) {
    if (candidate.implementation == "hopper_windows") return &candidate;
  }
  return nullptr;
}

class SlidingChannelWindowsGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (size_of(GetParam().dtype) != 2) GTEST_SKIP() << "for 16 bits";
    if (GetParam().wave_size != 32) GTEST_SKIP() << "GPUs of this wave size have no such kernels";
  }

  /// Steps of 8, 16, 32, 64 and 128 channels, of 4, 8 and 16 windows.
  static std::vector<SlidingChannelGeometry> geometries() {
    return {
        {{1, 64, 5, 7}, 64, 2, 0.5},   {{3, 128, 4, 9}, 192, 2, 0.5},  // more than a tile of positions, of filters
        {{1, 256, 3, 3}, 40, 2, 0.5},  {{2, 512, 2, 3}, 72, 2, 0.5},   // windows of fewer filters than a product takes
        {{1, 128, 5, 7}, 128, 4, 0.5}, {{2, 256, 6, 6}, 320, 4, 0.5}, {{1, 512, 1, 1}, 8, 4, 0.5},
        {{1, 1024, 3, 3}, 72, 4, 0.5}, {{1, 256, 5, 7}, 256, 8, 0.5}, {{2, 512, 4, 9}, 16, 8, 0.5},
        {{1, 1024, 3, 5}, 48, 8, 0.5}, {{1, 2048, 2, 2}, 32, 8, 0.5}, {{1, 64, 5, 7}, 64, 4, 0.5},
        {{2, 64, 6, 6}, 264, 4, 0.5},  {{1, 128, 5, 7}, 48, 8, 0.5},  {{1, 128, 9, 9}, 256, 8, 0.5},
    };
  }
  /// Blocks go on with further tiles.
  static SlidingChannelGeometry many_positions() { return {{17, 64, 8, 16}, 40, 2, 0.5}; }

  static Memories channels_last() { return Memories::all(Memory::channels_last); }
};
INSTANTIATE_TEST_SUITE_P(Targets, SlidingChannelWindowsGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(SlidingChannelWindowsGpu, Forward) {
  std::vector<SlidingChannelGeometry> all = geometries();
  all.push_back(many_positions());
  // Blocks of half of the windows, with several tiles of positions and of filters.
  all.insert(all.end(), {{{3, 512, 7, 9}, 128, 8, 0.5}, {{1, 512, 5, 9}, 144, 8, 0.5}, {{1, 1024, 5, 9}, 136, 4, 0.5}});
  // Two positions in a row: steps of 2, 4 and 8 channels, several tiles of positions and of filters.
  all.insert(all.end(), {{{1, 32, 5, 8}, 64, 8, 0.5},
                         {{9, 32, 16, 16}, 64, 8, 0.5},
                         {{3, 32, 16, 15}, 128, 4, 0.5},
                         {{2, 32, 33, 7}, 192, 2, 0.5}});
  // Steps of 4 channels.
  all.insert(all.end(), {{{1, 64, 5, 7}, 64, 8, 0.5}, {{9, 64, 16, 16}, 144, 8, 0.5}, {{2, 64, 3, 3}, 16, 8, 0.5}});
  for (const SlidingChannelGeometry& geometry : all) {
    const Forward problem{GetParam().dtype, geometry, {}, channels_last()};
    const auto candidates = explain_sliding_channel_conv2d(ForwardTensors(problem).arguments(problem));
    const Candidate* windows = find_windows(candidates);
    if (windows != nullptr) {
      EXPECT_TRUE(windows->taken) << windows->why_not;
    }
    verify_forward<SlidingChannelGeometry>(problem);
  }
}

TEST_P(SlidingChannelWindowsGpu, BothGradients) {
  std::vector<SlidingChannelGeometry> all = geometries();
  all.push_back(many_positions());
  for (const SlidingChannelGeometry& geometry : all) {
    const Backward problem{GetParam().dtype, geometry, {.grad_bias = false}, channels_last()};
    const auto candidates = explain_sliding_channel_conv2d_backward(BackwardTensors(problem).arguments(problem));
    const Candidate* windows = find_windows(candidates);
    if (windows != nullptr) {
      EXPECT_TRUE(windows->taken) << windows->why_not;
    }
    verify_backward<SlidingChannelGeometry>(problem);
  }
}

/// Of image 1 all channels of the first position become NaN.
void spoil(Tensor& tensor) {
  Array values = tensor.values();
  for (std::int64_t c = 0; c < values.channels(); ++c) values.at(1, c, 0, 0).value = NAN;
  tensor.fill(values);
}

void expect_finite_first_image(const Tensor& tensor) {
  const Array values = tensor.values();
  for_each_index(values.sizes, [&](auto n, auto c, auto h, auto w) {
    if (n == 0) {
      EXPECT_TRUE(std::isfinite(values.at(n, c, h, w).value)) << c << ", " << h << ", " << w;
    }
  });
}

/// Not to the position that might be beside it in a row.
TEST_P(SlidingChannelWindowsGpu, NanStaysInItsImage) {
  const SlidingChannelGeometry geometry{{2, 32, 33, 7}, 64, 2, 0.5};
  const Forward forward{GetParam().dtype, geometry, {}, channels_last()};
  ForwardTensors tensors(forward);
  spoil(tensors.x);
  run(SlidingChannelGeometry::kForward, tensors.arguments(forward));
  expect_finite_first_image(tensors.y);
  const Backward backward{GetParam().dtype, geometry, {.grad_bias = false}, channels_last()};
  BackwardTensors gradients(backward);
  spoil(gradients.grad_y);
  run(SlidingChannelGeometry::kBackward, gradients.arguments(backward));
  expect_finite_first_image(gradients.grad_x);
}

TEST_P(SlidingChannelWindowsGpu, EachGradient) {
  const BackwardFusion fusion[] = {{.grad_weight = false, .grad_bias = false}, {.grad_x = false, .grad_bias = false}};
  for (const SlidingChannelGeometry& geometry :
       {many_positions(), SlidingChannelGeometry{{1, 256, 5, 7}, 72, 4, 0.5}}) {
    for (const BackwardFusion& wanted : fusion) {
      verify_backward<SlidingChannelGeometry>({GetParam().dtype, geometry, wanted, channels_last()});
    }
  }
}

TEST_P(SlidingChannelWindowsGpu, LeavesTheRest) {
  const SlidingChannelGeometry geometries[] = {
      {{1, 128, 5, 7}, 64, 2, 0.25},  // windows that share less than half
      {{1, 32, 5, 7}, 64, 2, 0.5},    // steps of 8 channels, of four windows, an odd number of positions
      {{1, 192, 5, 7}, 64, 2, 0.5},   // and of 48
      {{1, 64, 5, 7}, 42, 2, 0.5},    // windows that not as many filters share
      {{1, 96, 5, 7}, 64, 3, 0.5},    // six windows
  };
  for (const SlidingChannelGeometry& geometry : geometries) {
    const Forward problem{GetParam().dtype, geometry, {}, channels_last()};
    const auto candidates = explain_sliding_channel_conv2d(ForwardTensors(problem).arguments(problem));
    const Candidate* windows = find_windows(candidates);
    if (windows != nullptr) {
      EXPECT_FALSE(windows->taken);
    }
    verify_forward<SlidingChannelGeometry>(problem);
    verify_backward<SlidingChannelGeometry>({GetParam().dtype, geometry, {}, channels_last()});
  }
}

/// What running a plan for the arguments says where the weight begins an element later.
template <class Arguments>
std::string message_with_shifted_weight(const Plan<Arguments>& plan, Arguments arguments) {
  const Workspace workspace(plan.workspace_bytes, 0);
  arguments.weight.data = static_cast<const char*>(arguments.weight.data) + size_of(arguments.weight.dtype);
  try {
    plan.run(arguments,
             {.parallel_for = {}, .threads = 1, .workspace = workspace.data(), .workspace_bytes = workspace.bytes()});
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

// Steps of 8 channels of which two positions are in a row, and such of 16; gradients of so many positions that they are
// those of pointwise convolutions.
TEST_P(SlidingChannelWindowsGpu, RefusesWeightsAtOtherAlignments) {
  for (const SlidingChannelGeometry& geometry :
       {SlidingChannelGeometry{{1, 32, 5, 8}, 64, 2, 0.5}, SlidingChannelGeometry{{1, 64, 5, 7}, 64, 2, 0.5}}) {
    const Forward forward{GetParam().dtype, geometry, {}, channels_last()};
    ForwardTensors tensors(forward);
    const auto arguments = tensors.arguments(forward);
    const auto candidates = explain_sliding_channel_conv2d(arguments);
    if (find_windows(candidates) == nullptr) continue;
    const std::string message = message_with_shifted_weight(plan_sliding_channel_conv2d(arguments, 1), arguments);
    EXPECT_EQ(message.substr(0, 7), "weight:") << message;
  }
  const SlidingChannelGeometry large{{gpu_multiprocessors() / 8 + 1, 32, 32, 32}, 64, 2, 0.5};
  const Backward backward{GetParam().dtype, large, {.grad_bias = false}, channels_last()};
  BackwardTensors tensors(backward);
  const auto arguments = tensors.arguments(backward);
  for (const Candidate& candidate : explain_sliding_channel_conv2d_backward(arguments)) {
    if (!candidate.taken) continue;
    const std::string message =
        message_with_shifted_weight(plan_sliding_channel_conv2d_backward(arguments, 1), arguments);
    EXPECT_EQ(message.substr(0, 7), "weight:") << message << candidate.implementation;
  }
}

// Half of its windows would fit shared memory, but with so many positions blocks are to have all.
TEST_P(SlidingChannelWindowsGpu, HasNoRoom) {
  const Forward problem{GetParam().dtype, {{1, 8192, 33, 32}, 16, 8, 0.5}, {}, channels_last()};
  const auto candidates = explain_sliding_channel_conv2d(ForwardTensors(problem).arguments(problem));
  const Candidate* windows = find_windows(candidates);
  if (windows != nullptr) {
    EXPECT_FALSE(windows->taken);
  }
}

}  // namespace
}  // namespace fusedsc::reference
