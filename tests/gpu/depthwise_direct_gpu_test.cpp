/// Depthwise kernels for small problems on GPUs, whose threads have an output or a few: each way to share them out.
#include "gpu/depthwise_forced.h"
#include "gpu/depthwise_isolation.h"

namespace fusedsc::reference {
namespace {

constexpr const char* kDirect = "gpu_direct";

class DepthwiseDirectGpu : public OnGpu {
 protected:
  static bool is_able(const DepthwiseForwardCase& problem) { return !able_forward(problem, {kDirect}).empty(); }
  /// role: of one gradient.
  static bool is_able(const DepthwiseBackwardCase& problem, const char* role) {
    return !able_backward(problem, role, {kDirect}).empty();
  }
  static DepthwiseBackwardCase input_gradient(const DepthwiseGeometry& geometry, const Memories& memories) {
    return {GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, memories};
  }
  static DepthwiseBackwardCase weight_gradient(const DepthwiseGeometry& geometry, const Memories& memories,
                                               bool has_bias = true) {
    return {GetParam().dtype, geometry, {.grad_x = false, .grad_bias = has_bias}, memories};
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

/// Every kernel; of weights, with many and few threads, splits that have work and those that have none.
TEST_P(DepthwiseDirectGpu, Instances) {
  const auto verify_all = [](const auto& problem, const char* role, const auto& tensors, const auto& kernels,
                             const auto& verify) {
    const auto found = able(kernels, tensors, {kDirect});
    if (found.empty()) return 0;
    const tuning::Configs configs = found[0].configs(tensors);
    EXPECT_FALSE(configs.empty());
    for (const tuning::Config& config : configs) {
      verify(problem, role, kDirect + ('/' + tuning::printed(config)));
      if (HasFailure()) break;
    }
    return static_cast<int>(configs.size());
  };
  const auto forward = [](const auto& problem, const char*, const std::string& choice) {
    verify_forward_by(problem, choice);
  };
  int configs = 0;
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    for (const std::int64_t kernel : {3, 5, 7}) {
      for (const std::int64_t stride : {1, 2}) {
        const DepthwiseGeometry geometry{{2, 40, 11, 9}, centered(kernel, stride)};
        const Memories memories = Memories::all(memory);
        const DepthwiseForwardCase plain{GetParam().dtype, geometry, {.bias = kernel == 3}, memories};
        ForwardTensors<DepthwiseGeometry> tensors(plain);
        configs += verify_all(plain, kForwardRole, tensors.arguments(plain), gpu::depthwise_gpu_kernels(), forward);
        const DepthwiseBackwardCase input = input_gradient(geometry, memories);
        BackwardTensors<DepthwiseGeometry> of_input(input);
        configs += verify_all(input, kInputRole, of_input.arguments(input), gpu::depthwise_input_kernels(),
                              verify_backward_by);
        const DepthwiseBackwardCase weight = weight_gradient({{3, 40, 11, 13}, geometry.window}, memories);
        BackwardTensors<DepthwiseGeometry> of_weight(weight);
        configs += verify_all(weight, kWeightRole, of_weight.arguments(weight), gpu::depthwise_weight_kernels(),
                              verify_backward_by);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(configs, size_of(GetParam().dtype) == 8 ? 60 : 150);
}

TEST_P(DepthwiseDirectGpu, Edges) {
  for (const DepthwiseGeometry& geometry : geometries()) {
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      const Memories memories = Memories::all(memory);
      const std::vector<DepthwiseForwardCase> plain = {{GetParam().dtype, geometry, {}, memories},
                                                       {GetParam().dtype, geometry, {.bias = true}, memories}};
      ASSERT_EQ(verify_forward_by_each(plain, {kDirect}), 2) << geometry;
      const bool halves = geometry.window.stride == std::array<std::int64_t, 2>{2, 2};
      const int inputs =
          verify_backward_by_each({input_gradient(geometry, memories)}, {kInputRole}, {kDirect, "forward_gpu_direct"});
      // At stride 1 the input gradient is a forward pass, unless there is more padding than a window reaches.
      if (geometry.window.stride[0] != 1) {
        ASSERT_EQ(inputs, halves ? 1 : 0) << geometry;
      }
      for (const bool has_bias : {false, true}) {
        const auto weight = weight_gradient(geometry, memories, has_bias);
        ASSERT_EQ(verify_backward_by_each({weight}, {kWeightRole}, {kDirect}), geometry.window.kernel[0] < 7 ? 1 : 0);
      }
      if (HasFailure()) return;
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
    const DepthwiseForwardCase plain{GetParam().dtype, geometry, {.bias = coin(random)}, memories};
    ASSERT_EQ(verify_forward_by_each({plain}, {kDirect}), 1) << plain;
    verify_backward_by_each({input_gradient(geometry, memories), weight_gradient(geometry, memories, coin(random))},
                            {kInputRole, kWeightRole}, {kDirect, "forward_gpu_direct"});
    if (HasFailure()) return;
  }
}

/// Masks, too, keep what is not finite where it is.
TEST_P(DepthwiseDirectGpu, ChannelsApart) {
  const Forced forced(kForwardRole, kDirect);
  for (const DepthwiseGeometry& geometry : geometries()) {
    if (geometry.x[1] < 12) continue;
    for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
      const DepthwiseForwardCase problem{GetParam().dtype, geometry, {}, Memories::all(memory)};
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
  const auto with = [&](const ForwardFusion& fusion) {
    return is_able({GetParam().dtype, geometry, fusion, contiguous});
  };
  const auto window_is_able = [&](const Window& window, std::int64_t multiplier = 1) {
    const DepthwiseGeometry other{geometry.x, window, multiplier};
    const bool forward = is_able({GetParam().dtype, other, {}, contiguous});
    EXPECT_EQ(is_able(weight_gradient(other, contiguous), kWeightRole), forward && window.kernel[0] < 7);
    return forward;
  };
  EXPECT_TRUE(with({}));
  EXPECT_FALSE(with({.prologue = true}));
  EXPECT_FALSE(with({.output = ForwardFusion::Output::statistics}));
  EXPECT_FALSE(with({.output = ForwardFusion::Output::epilogue}));
  EXPECT_TRUE(window_is_able(centered(7)));
  EXPECT_FALSE(window_is_able(centered(4)));
  EXPECT_FALSE(window_is_able({{3, 5}, {1, 1}, {1, 1}, {2, 2, 1, 1}}));
  EXPECT_FALSE(window_is_able({{3, 3}, {1, 1}, {2, 2}, {2, 2, 2, 2}}));
  EXPECT_FALSE(window_is_able(centered(3), 2));
  for (const BackwardFusion& fusion : {BackwardFusion{.prologue = true}, BackwardFusion{.gradient_prologue = true}}) {
    const DepthwiseBackwardCase problem{GetParam().dtype, geometry, fusion, contiguous};
    EXPECT_FALSE(is_able(problem, kWeightRole));
    EXPECT_FALSE(is_able(problem, kInputRole));
  }
  Memories spread = contiguous;
  spread.weight = Memory::spread;
  EXPECT_FALSE(is_able({GetParam().dtype, geometry, {}, spread}));
}

/// They are what is taken for small problems, before what Hopper GPUs have for more work.
TEST_P(DepthwiseDirectGpu, SmallProblems) {
  const auto taken = [](const auto& candidates, std::string_view direction) {
    for (const Candidate& candidate : candidates) {
      if (candidate.direction == direction && candidate.taken) return candidate.implementation;
    }
    return std::string();
  };
  const auto forward = [&](std::int64_t elements) {
    const DepthwiseGeometry geometry{{elements / (40 * 49), 40, 7, 7}, centered(3)};
    const DepthwiseForwardCase problem{GetParam().dtype, geometry, {}, Memories::all(Memory::channels_last)};
    ForwardTensors<DepthwiseGeometry> tensors(problem);
    return taken(explain_depthwise_conv2d(tensors.arguments(problem)), "forward");
  };
  const std::int64_t unit = std::int64_t{1000} * gpu_multiprocessors();
  EXPECT_EQ(forward(unit), kDirect);
  EXPECT_NE(forward(20 * unit), kDirect);
  if (size_of(GetParam().dtype) == 2) {
    EXPECT_EQ(forward(7 * unit), kDirect);
  }

  const auto backward = [&](std::int64_t images, std::string_view direction) {
    const DepthwiseBackwardCase problem{GetParam().dtype,
                                        {{images, 40, 7, 7}, centered(3)},
                                        {.grad_bias = false},
                                        Memories::all(Memory::channels_last)};
    BackwardTensors<DepthwiseGeometry> tensors(problem);
    return taken(explain_depthwise_conv2d_backward(tensors.arguments(problem)), direction);
  };
  const std::int64_t small = gpu_multiprocessors() / 4 + 1, large = 2 * gpu_multiprocessors();
  EXPECT_EQ(backward(small, "backward"), "gpu_separate");
  EXPECT_EQ(backward(1, "grad_weight"), kDirect);
  EXPECT_NE(backward(40 * gpu_multiprocessors(), "grad_weight"), kDirect);
  // Both gradients of others are one kernel's, on GPUs that have that.
  const bool has_fused_gradients = has_hopper(GetParam().dtype) && GetParam().dtype != DataType::float64;
  EXPECT_EQ(backward(large, "backward"), has_fused_gradients ? "hopper_fused_gradients" : "gpu_separate");
}

}  // namespace
}  // namespace fusedsc::reference
