/// The registry of sliding-channel kernels: every kernel by force, on problems that fit it, on a GPU with every config
/// that any of these has, on the host executor with configs that are far apart; that explain says what runs; and what
/// force says when it cannot.
#include <map>

#include "fusedsc/backward/sliding_channel/sliding_channel_kernels.h"
#include "fusedsc/forward/sliding_channel/sliding_channel_kernels.h"
#include "gpu/forced.h"
#include "ops/backward_case.h"
#include "ops/forward_case.h"
#include "ops/sliding_channel_cases.h"

namespace fusedsc::reference {
namespace {

constexpr const char *kForwardRole = "sliding_channel_conv2d.forward",
                     *kBackwardRole = "sliding_channel_conv2d.backward";

using Forward = ForwardCase<SlidingChannelGeometry>;
using Backward = BackwardCase<SlidingChannelGeometry>;

class SlidingChannelKernelsGpu : public OnGpu {
 protected:
  /// Whether products may be TensorFloat-32's: on what plays an NVIDIA GPU.
  static bool is_tf32() { return GetParam().dtype == DataType::float32 && GetParam().wave_size == 32; }

  /// Steps of 8 to 128 channels and windows of 2 to 16; two positions in a row; and what has no windows in step.
  static std::vector<SlidingChannelGeometry> geometries() {
    std::vector<SlidingChannelGeometry> all = {
        {{1, 64, 5, 7}, 64, 2, 0.5},   {{3, 128, 4, 9}, 192, 2, 0.5}, {{1, 256, 5, 9}, 72, 2, 0.5},
        {{1, 512, 3, 5}, 128, 8, 0.5}, {{2, 64, 6, 6}, 264, 4, 0.5},  {{1, 1024, 3, 3}, 48, 8, 0.5},
        {{3, 32, 8, 8}, 128, 4, 0.5},  {{2, 64, 9, 8}, 48, 8, 0.5},   {{1, 136, 5, 8}, 144, 2, 0.25},
        {{1, 16, 14, 15}, 24, 2, 0.5}, {{2, 25, 6, 7}, 36, 3, 0.5},
    };
    for (SlidingChannelGeometry& geometry : all) geometry.tf32 = is_tf32();
    return all;
  }

  static std::vector<Memory> memories() { return {Memory::contiguous, Memory::channels_last}; }

  /// Whether the GPU, or what plays one, has the kernels of Hopper GPUs for this type.
  static bool has_hopper() {
    const Forward problem{
        GetParam().dtype, {{1, 32, 8, 8}, 32, 2, 0.5, is_tf32()}, {}, Memories::all(Memory::channels_last)};
    ForwardTensors<SlidingChannelGeometry> tensors(problem);
    return !able(sliding_channel_kernels(), tensors.arguments(problem), {"hopper_resident"}).empty();
  }

  /// Whether every kernel had a problem, of those that this GPU and type have any.
  template <class Kernels>
  static void expect_all(const Kernels& kernels, const std::map<std::string, int>& runs) {
    const bool is_half = size_of(GetParam().dtype) == 2;
    for (const auto& kernel : kernels) {
      const std::string name = kernel.name;
      if (name == "cpu_windows" || (name.rfind("hopper", 0) == 0 && !has_hopper())) continue;
      const bool is_for_half = name == "hopper_windows" || name == "hopper_rows" || name == "hopper";
      if (is_half ? name == "hopper_tf32_planes" : is_for_half) continue;
      EXPECT_GT(runs.count(name), 0u) << "no problem of this test is for " << name;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, SlidingChannelKernelsGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(SlidingChannelKernelsGpu, Forward) {
  using enum ForwardFusion::Output;
  const ForwardFusion each_fusion[] = {{.prologue = true, .activation = Activation::relu6, .output = statistics},
                                       {.bias = true},
                                       {.output = epilogue, .epilogue_activation = Activation::relu, .residual = true}};
  std::map<std::string, int> runs;
  ConfigTour tour;
  std::size_t number = 0;
  for (const SlidingChannelGeometry& geometry : geometries()) {
    for (const Memory memory : memories()) {
      for (const ForwardFusion& fusion : {ForwardFusion{}, each_fusion[number % std::size(each_fusion)]}) {
        const Forward problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        ForwardTensors<SlidingChannelGeometry> tensors(problem);
        const SlidingChannelArguments arguments = tensors.arguments(problem);
        for (const auto& kernel : able(sliding_channel_kernels(), arguments)) {
          for (const std::string& choice : tour.next(kernel, arguments, 3)) {
            verify_by(kForwardRole, choice, [&] { verify_forward(problem); });
            ++runs[kernel.name];
            if (HasFailure()) return;
          }
        }
      }
      ++number;
    }
  }
  expect_all(sliding_channel_kernels(), runs);
  tour.record(kForwardRole);
}

TEST_P(SlidingChannelKernelsGpu, Backward) {
  const BackwardFusion each_fusion[] = {
      {.grad_weight = false, .grad_bias = false},
      {.prologue = true, .activation = Activation::relu6, .gradient_prologue = true, .sums = true, .grad_bias = false},
      {.grad_x = false, .grad_bias = false}};
  std::map<std::string, int> runs;
  ConfigTour tour;
  std::size_t number = 0;
  for (const SlidingChannelGeometry& geometry : geometries()) {
    for (const Memory memory : memories()) {
      for (const BackwardFusion& fusion :
           {BackwardFusion{.grad_bias = false}, each_fusion[number % std::size(each_fusion)]}) {
        const Backward problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        BackwardTensors<SlidingChannelGeometry> tensors(problem);
        const SlidingChannelBackwardArguments arguments = tensors.arguments(problem);
        for (const auto& kernel : able(sliding_channel_backward_kernels(), arguments)) {
          for (const std::string& choice : tour.next(kernel, arguments, 3)) {
            verify_by(kBackwardRole, choice, [&] { verify_backward(problem); });
            ++runs[kernel.name];
            if (HasFailure()) return;
          }
        }
      }
      ++number;
    }
  }
  expect_all(sliding_channel_backward_kernels(), runs);
  tour.record(kBackwardRole);
}

/// The kernel and config that explain prints are those that run without force, and the prior's.
TEST_P(SlidingChannelKernelsGpu, ExplainSaysWhatRuns) {
  for (const SlidingChannelGeometry& geometry : geometries()) {
    for (const Memory memory : memories()) {
      const Forward forward{GetParam().dtype, geometry, {}, Memories::all(memory)};
      const Backward backward{GetParam().dtype, geometry, {.grad_bias = false}, Memories::all(memory)};
      SCOPED_TRACE(testing::PrintToString(forward));
      ForwardTensors<SlidingChannelGeometry> tensors(forward);
      BackwardTensors<SlidingChannelGeometry> gradients(backward);
      const SlidingChannelArguments arguments = tensors.arguments(forward);
      const SlidingChannelBackwardArguments of_gradients = gradients.arguments(backward);
      expect_explained(kForwardRole, explain_sliding_channel_conv2d(arguments),
                       [&] { run(SlidingChannelGeometry::kForward, arguments); });
      expect_explained(kBackwardRole, explain_sliding_channel_conv2d_backward(of_gradients),
                       [&] { run(SlidingChannelGeometry::kBackward, of_gradients); });
    }
  }
}

/// Nothing runs in the place of what is forced, and the next call works.
TEST_P(SlidingChannelKernelsGpu, ForceSaysWhatItCannot) {
  const Memories memories = Memories::all(Memory::channels_last);
  const Forward forward{GetParam().dtype, {{1, 64, 8, 8}, 64, 2, 0.5}, {.bias = true}, memories};
  const Backward backward{GetParam().dtype, forward.geometry, {}, memories};
  ForwardTensors<SlidingChannelGeometry> tensors(forward);
  BackwardTensors<SlidingChannelGeometry> gradients(backward);
  const SlidingChannelArguments arguments = tensors.arguments(forward);
  const SlidingChannelBackwardArguments of_gradients = gradients.arguments(backward);
  for (const char* choice : {"cpu_windows", "hopper_windows", "hopper_tf32_planes", "composed/rows=3"}) {
    const Forced forced(kForwardRole, choice), gradients_forced(kBackwardRole, choice);
    EXPECT_THROW(run(SlidingChannelGeometry::kForward, arguments), Unsupported) << choice;
    EXPECT_THROW(run(SlidingChannelGeometry::kBackward, of_gradients), Unsupported) << choice;
  }
  verify_forward(forward);
  verify_backward(backward);
}

TEST_P(SlidingChannelKernelsGpu, ConfigsThatDoNotFit) {
  const Memories memories = Memories::all(Memory::channels_last);
  const Forward forward{GetParam().dtype, {{1, 64, 8, 8}, 64, 2, 0.5, is_tf32()}, {}, memories};
  const Backward backward{GetParam().dtype, forward.geometry, {.grad_bias = false}, memories};
  ForwardTensors<SlidingChannelGeometry> tensors(forward);
  BackwardTensors<SlidingChannelGeometry> gradients(backward);
  const SlidingChannelArguments arguments = tensors.arguments(forward);
  const SlidingChannelBackwardArguments of_gradients = gradients.arguments(backward);
  for (const auto& kernel : able(sliding_channel_kernels(), arguments)) {
    const Forced forced(kForwardRole, std::string(kernel.name) + "/channels=77");
    EXPECT_THROW(run(SlidingChannelGeometry::kForward, arguments), Unsupported) << kernel.name;
  }
  for (const auto& kernel : able(sliding_channel_backward_kernels(), of_gradients)) {
    const Forced forced(kBackwardRole, std::string(kernel.name) + "/channels=77");
    EXPECT_THROW(run(SlidingChannelGeometry::kBackward, of_gradients), Unsupported) << kernel.name;
  }
}

}  // namespace
}  // namespace fusedsc::reference
