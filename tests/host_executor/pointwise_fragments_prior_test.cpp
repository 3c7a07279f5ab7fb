/// Which configs "gpu_fragments" takes by itself on a GPU with 132 multiprocessors: where the weight stays in shared
/// memory, and where it comes in stages; and that it is taken for weight gradients.
#include <gtest/gtest.h>

#include "fusedsc/backward/pointwise.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "host_executor/executor.h"

namespace fusedsc {
namespace {

struct Layer {
  std::int64_t channels, outputs, side;
};

class PointwiseFragmentsPrior : public testing::TestWithParam<DataType> {
 protected:
  void SetUp() override {
    gpu::executor::set_wave_size(32);
    gpu::executor::set_multiprocessors(132);
    gpu::executor::set_shared_memory_limit(std::size_t{227} * 1024);
  }
  void TearDown() override {
    gpu::executor::set_shared_memory_limit(0);
    gpu::executor::set_multiprocessors(kBefore);
  }

  /// Where tensors would lie: plans look at addresses for their alignment alone.
  static TensorView tensor(std::uintptr_t number, const Sizes& sizes, Layout layout) {
    return {reinterpret_cast<void*>(number << 40), GetParam(), sizes, dense_strides(sizes, layout), Device::gpu};
  }

  /// Whether the weight comes in stages.
  static bool streams_forward(const Layer& layer) {
    PointwiseArguments a;
    a.allow_tf32 = true;
    a.x = tensor(1, {64, layer.channels, layer.side, layer.side}, Layout::channels_last);
    a.weight = tensor(2, {layer.outputs, layer.channels, 1, 1}, Layout::contiguous);
    a.y = tensor(3, {64, layer.outputs, layer.side, layer.side}, Layout::channels_last);
    return describe(layer, gpu::pointwise_fragments_prior(a));
  }
  static bool streams_input_gradient(const Layer& layer) {
    PointwiseBackwardArguments a;
    a.allow_tf32 = true;
    a.x = tensor(1, {64, layer.channels, layer.side, layer.side}, Layout::channels_last);
    a.weight = tensor(2, {layer.outputs, layer.channels, 1, 1}, Layout::contiguous);
    a.grad_y = tensor(3, {64, layer.outputs, layer.side, layer.side}, Layout::channels_last);
    a.grad_x = tensor(4, a.x.sizes, Layout::channels_last);
    return describe(layer, pointwise_backward_fragments_prior(a));
  }

 private:
  static bool describe(const Layer& layer, const tuning::Config& config) {
    RecordProperty(std::to_string(layer.channels) + "_" + std::to_string(layer.outputs), tuning::printed(config));
    return config[tuning::Knob::depth] > 0;
  }

  const int kBefore = gpu::multiprocessors();
};
INSTANTIATE_TEST_SUITE_P(Types, PointwiseFragmentsPrior,
                         testing::Values(DataType::float16, DataType::bfloat16, DataType::float32));

constexpr Layer kDeep[] = {{1152, 192, 7}, {960, 320, 7}, {576, 160, 7}};
constexpr Layer kShallow[] = {{16, 96, 112}, {24, 144, 56}, {32, 192, 28}};

TEST_P(PointwiseFragmentsPrior, DeepWeightsStream) {
  for (const Layer& layer : kDeep) {
    if (GetParam() == DataType::float32 && layer.channels == 576) continue;  // one is as good as the other, by count
    EXPECT_TRUE(streams_forward(layer)) << layer.channels;
    EXPECT_TRUE(streams_input_gradient({layer.outputs, layer.channels, layer.side})) << layer.channels;
  }
}

TEST_P(PointwiseFragmentsPrior, ShallowWeightsStay) {
  for (const Layer& layer : kShallow) {
    EXPECT_FALSE(streams_forward(layer)) << layer.channels;
    EXPECT_FALSE(streams_input_gradient({layer.outputs, layer.channels, layer.side})) << layer.channels;
  }
}

/// Hopper's kernels have no groups.
TEST_P(PointwiseFragmentsPrior, WeightGradients) {
  PointwiseBackwardArguments a;
  a.allow_tf32 = true;
  a.groups = 2;
  a.x = tensor(1, {64, 192, 14, 14}, Layout::channels_last);
  a.weight = tensor(2, {96, 96, 1, 1}, Layout::contiguous);
  a.grad_y = tensor(3, {64, 96, 14, 14}, Layout::channels_last);
  a.grad_weight = tensor(4, a.weight.sizes, Layout::contiguous);
  const auto taken = [&]() -> std::string {
    for (const Candidate& one : explain_pointwise_conv2d_backward(a)) {
      if (one.taken) return one.implementation;
    }
    return {};
  };
  EXPECT_EQ(taken(), "gpu_fragments");
  a.allow_tf32 = false;
  EXPECT_EQ(taken(), GetParam() == DataType::float32 ? "gpu_tiles" : "gpu_fragments");
}

}  // namespace
}  // namespace fusedsc
