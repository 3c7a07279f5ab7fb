/// Kernels whose waves wait for each other by barriers that tell a phase from the one before only, with each wave in
/// turn behind all others: none waits for ever, and none overtakes what it should wait for.
#include <utility>

#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "gpu/depthwise_forced.h"
#include "gpu/forced.h"
#include "gpu/gpu_under_test.h"
#include "host_executor/executor.h"
#include "host_executor/late_wave.h"
#include "ops/backward_case.h"
#include "ops/dsc_block_verify.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

/// A late wave is overtaken where nothing else would make it wait.
TEST(LateWave, GoesLast) {
  gpu::executor::set_wave_size(32);
  for (const int late : {-1, 0, 1}) {
    gpu::executor::set_late_wave(late);
    std::vector<int> order;
    gpu::executor::run(1, 96, 0, [&] {
      for (int i = 0; i < 2; ++i) {
        gpu::executor::wait_until([] { return true; });
        if (gpu::thread_index() % 32 == 0) order.push_back(gpu::thread_index() / 32);
        gpu::executor::wave_barrier();
      }
    });
    gpu::executor::set_late_wave(-1);
    ASSERT_EQ(order.size(), 6u);
    if (late >= 0) EXPECT_EQ(std::vector<int>(order.end() - 2, order.end()), std::vector<int>(2, late));
  }
}

class LateWaves : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    use_memory(gpu_memory());
    use_gpu_wave_size(32);
    align_tensors(true);
    gpu::executor::set_multiprocessors(1);
    gpu::executor::set_late_wave(GetParam());
  }
  void TearDown() override {
    gpu::executor::set_late_wave(-1);
    gpu::executor::set_multiprocessors(before_);
    align_tensors(false);
  }

 private:
  int before_ = gpu::executor::multiprocessors();
};
INSTANTIATE_TEST_SUITE_P(Waves, LateWaves, testing::Range(0, 16), testing::PrintToStringParamName());

bool is_one_kernel(const std::vector<Candidate>& candidates) {
  return std::any_of(candidates.begin(), candidates.end(),
                     [](const Candidate& one) { return one.taken && one.implementation.starts_with("gpu_hopper"); });
}

/// MobileNetV2's and others, on smaller maps. Warps have runs of some chunks of channels only, and of few or many
/// others nothing.
TEST_P(LateWaves, DscBlockInOneKernel) {
  const std::pair<DepthwiseGeometry, std::int64_t> kBlocks[] = {
      {{{1, 96, 40, 56}, centered(3, 2)}, 24},  {{{1, 144, 28, 28}, centered(3)}, 24},
      {{{1, 144, 40, 28}, centered(3, 2)}, 32}, {{{1, 16, 64, 64}, centered(3, 2)}, 16},
      {{{1, 192, 28, 28}, centered(3, 2)}, 64}, {{{2, 72, 14, 14}, centered(3)}, 64},
      {{{2, 136, 14, 14}, centered(3)}, 96},    {{{4, 40, 14, 14}, centered(3, 2)}, 80},
      {{{2, 32, 28, 56}, centered(3)}, 16},
  };
  for (const auto& [depthwise, outputs] : kBlocks) {
    const DscBlockCase block{.dtype = DataType::float16,
                             .depthwise = depthwise,
                             .outputs = outputs,
                             .training = false,
                             .memories = Memories::all(Memory::channels_last)};
    SCOPED_TRACE(testing::Message() << block);
    DscBlockForward tensors(block);
    ASSERT_TRUE(is_one_kernel(explain_dsc_block(tensors.arguments(block))));
    ASSERT_NO_THROW(verify_dsc_block(block));
  }
}

/// Tiles that TMA brings and takes, more of them than there are stages, of several images or pieces.
TEST_P(LateWaves, DepthwisePatches) {
  const Memories memories = Memories::all(Memory::channels_last);
  for (const std::int64_t kernel : {3, 5, 7}) {
    for (const Sizes& x : {Sizes{1, 32, 40, 20}, Sizes{17, 24, 7, 7}, Sizes{2, 40, 33, 14}}) {
      const DepthwiseGeometry geometry{x, centered(kernel)};
      const int forward =
          verify_forward_by_each({{DataType::float16, geometry, {.bias = kernel == 7}, memories}}, {"hopper_patches"});
      const int backward = verify_backward_by_each({{DataType::float16, geometry, {.grad_x = false}, memories}},
                                                   {kWeightRole}, {"hopper_patches"});
      ASSERT_EQ(forward, 1);
      ASSERT_EQ(backward, 1);
      ASSERT_FALSE(HasFailure());
    }
  }
}

/// Pointwise products whose weight comes in stages, of which each warp copies a part for all; and weight gradients, of
/// floats with strips of which each warp copies some.
TEST_P(LateWaves, PointwiseStages) {
  if (GetParam() >= 4) GTEST_SKIP() << "their blocks have four waves";
  use_gpu_shared_memory(std::size_t{163} * 1024);
  int configs = 0;
  const auto verify_streamed = [&](const char* role, const auto& kernels, const auto& arguments, const auto& verify) {
    for (const auto& kernel : able(kernels, arguments, {"gpu_fragments"})) {
      for (const tuning::Config& config : kernel.configs(arguments)) {
        if (config[tuning::Knob::depth] == 0) continue;
        verify_by(role, "gpu_fragments/" + tuning::printed(config), verify);
        ++configs;
      }
    }
  };
  for (const DataType dtype : {DataType::float16, DataType::float32}) {
    for (const bool fused : {false, true}) {
      const PointwiseGeometry geometry{{2, 200, 9, 11}, 136, 1, dtype == DataType::float32};
      const ForwardCase<PointwiseGeometry> forward{
          dtype, geometry, {.prologue = fused}, Memories::all(Memory::channels_last)};
      ForwardTensors<PointwiseGeometry> tensors(forward);
      verify_streamed("pointwise_conv2d.forward", gpu::pointwise_gpu_kernels(), tensors.arguments(forward),
                      [&] { verify_forward(forward); });
      const BackwardCase<PointwiseGeometry> backward{
          dtype,
          geometry,
          {.gradient_prologue = fused, .grad_weight = false, .grad_bias = false},
          Memories::all(Memory::channels_last)};
      BackwardTensors<PointwiseGeometry> gradients(backward);
      verify_streamed("pointwise_conv2d.backward", pointwise_backward_kernels(), gradients.arguments(backward),
                      [&] { verify_backward(backward); });
      const BackwardCase<PointwiseGeometry> of_weight{dtype,
                                                      geometry,
                                                      {.prologue = fused, .gradient_prologue = fused, .grad_x = false},
                                                      Memories::all(Memory::channels_last)};
      BackwardTensors<PointwiseGeometry> of_strips(of_weight);
      verify_streamed("pointwise_conv2d.backward", pointwise_backward_kernels(), of_strips.arguments(of_weight),
                      [&] { verify_backward(of_weight); });
    }
  }
  use_gpu_shared_memory(0);
  EXPECT_GE(configs, 81);
}

}  // namespace
}  // namespace fusedsc::reference
