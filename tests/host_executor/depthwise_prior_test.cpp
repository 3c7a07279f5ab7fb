/// Which depthwise kernels and configs are taken where nothing is forced, on a GPU with 132 multiprocessors (H100,
/// H200): for layers D1 to D30 of the seed paper, in all types, layouts, directions and batches. depthwise_prior.txt
/// has what it was when kernels were still chosen by a chain in each operator, a line for 30 layers: how often each
/// kernel, and a hash of all choices with their configs.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/forward/depthwise.h"
#include "host_executor/executor.h"

namespace fusedsc {
namespace {

struct Layer {
  std::int64_t channels, side, kernel, stride;
};

constexpr Layer kLayers[] = {
    {32, 112, 3, 1}, {144, 56, 3, 1}, {240, 28, 5, 1}, {384, 14, 3, 1}, {960, 7, 3, 1},  {96, 112, 3, 2},
    {240, 28, 3, 2}, {480, 14, 3, 1}, {480, 14, 5, 1}, {1152, 7, 3, 1}, {1152, 7, 5, 1}, {144, 56, 3, 2},
    {144, 56, 5, 2}, {192, 28, 3, 1}, {192, 28, 3, 2}, {576, 14, 3, 1}, {576, 14, 3, 2}, {672, 14, 5, 1},
    {672, 14, 5, 2}, {72, 56, 3, 1},  {120, 28, 5, 1}, {24, 28, 3, 1},  {48, 14, 3, 1},  {96, 7, 3, 1},
    {48, 112, 3, 2}, {72, 56, 5, 2},  {576, 14, 5, 2}, {24, 56, 3, 2},  {48, 28, 3, 2},  {96, 14, 3, 2},
};

enum class Pass { plain, statistics, normalised, inference, input, weight, both, training };
constexpr const char* kPassNames[] = {
    "forward", "forward+statistics", "forward+prologue+statistics", "forward+epilogue", "grad_input", "grad_weight",
    "both",    "both+prologues+sums"};

/// Where tensors would lie: plans look at addresses for their alignment alone.
void* place(std::uintptr_t number) { return reinterpret_cast<void*>((number + 1) << 40); }

struct Problem {
  Sizes x, weight, y;
  Window window;
  DataType dtype;
  Layout layout;
  bool has_bias = false;

  Problem(const Layer& layer, std::int64_t batch, DataType dtype_, Layout layout_)
      : x{batch, layer.channels, layer.side, layer.side},
        weight{layer.channels, 1, layer.kernel, layer.kernel},
        dtype(dtype_),
        layout(layout_) {
    const std::int64_t half = layer.kernel / 2;
    window = {{layer.kernel, layer.kernel}, {layer.stride, layer.stride}, {1, 1}, {half, half, half, half}};
    y = {batch, layer.channels, window.output_height(layer.side), window.output_width(layer.side)};
  }

  TensorView tensor(std::uintptr_t number, const Sizes& sizes) const {
    return {place(number), dtype, sizes, dense_strides(sizes, layout), Device::gpu};
  }
  TensorView weights(std::uintptr_t number) const {
    return {place(number), dtype, weight, dense_strides(weight, Layout::contiguous), Device::gpu};
  }
  ChannelVector vector(std::uintptr_t number) const {
    return {place(number), accumulation_type(dtype), x[1], Device::gpu};
  }

  std::vector<Candidate> forward(Pass pass) const {
    DepthwiseArguments a;
    a.x = tensor(0, x);
    a.weight = weights(1);
    a.window = window;
    a.y = tensor(2, y);
    if (has_bias) a.bias = {place(3), dtype, x[1], Device::gpu};
    if (pass == Pass::normalised) a.prologue = {vector(3), vector(4), Activation::relu6};
    if (pass == Pass::statistics || pass == Pass::normalised) a.statistics = {vector(5), vector(6)};
    if (pass == Pass::inference) a.epilogue = {vector(7), vector(8), Activation::relu6, {}};
    return explain_depthwise_conv2d(a);
  }

  std::vector<Candidate> backward(Pass pass) const {
    DepthwiseBackwardArguments a;
    a.x = tensor(0, x);
    a.weight = weights(1);
    a.window = window;
    a.grad_y = tensor(2, y);
    if (pass != Pass::weight) a.grad_x = tensor(3, x);
    if (pass != Pass::input) a.grad_weight = weights(4);
    if (pass == Pass::training) {
      a.prologue = {vector(5), vector(6), Activation::relu6};
      a.gradient_prologue = {vector(7), vector(8), vector(9), tensor(10, y)};
      a.sums = {vector(11), vector(12), vector(13)};
    }
    return explain_depthwise_conv2d_backward(a);
  }

  /// "forward: kernel/config", of all that runs.
  std::string choices(Pass pass) const {
    std::string text;
    for (const Candidate& candidate : pass < Pass::input ? forward(pass) : backward(pass)) {
      if (!candidate.taken) continue;
      EXPECT_EQ(candidate.why, "prior");
      text += (text.empty() ? "" : "; ") + candidate.direction + ": " + candidate.implementation;
      if (!candidate.config.empty()) text += '/' + candidate.config;
    }
    return text;
  }
};

std::uint64_t hash_of(const std::string& text) {  // FNV-1a
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

class DepthwisePrior : public testing::Test {
 protected:
  void SetUp() override {
    gpu::executor::set_wave_size(32);
    gpu::executor::set_multiprocessors(132);
  }
  void TearDown() override { gpu::executor::set_multiprocessors(3); }
};

TEST_F(DepthwisePrior, TakesWhatTheChainTook) {
  if (!gpu::kCopiesRunAhead) GTEST_SKIP() << "the choices are those of an H200; this build's kernels are AMD's";
  const char* const path = "host_executor/depthwise_prior.txt";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is not there; run the test in the directory tests/ of the sources, as ctest does";
  int wrong = 0;
  for (int pass = 0; pass < 8; ++pass) {
    for (const DataType dtype : {DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64}) {
      for (const Layout layout : {Layout::channels_last, Layout::contiguous}) {
        for (const std::int64_t batch : {1, 8, 16, 32, 64}) {
          std::map<std::string, int> counts;
          std::string all;
          for (const Layer& layer : kLayers) {
            const std::string choices = Problem(layer, batch, dtype, layout).choices(static_cast<Pass>(pass));
            all += choices + '\n';
            std::istringstream words(choices);
            for (std::string word; words >> word;) {
              const bool is_kernel =
                  word.find("gpu_") != std::string::npos || word.find("hopper_") != std::string::npos;
              if (is_kernel) ++counts[word.substr(0, word.find_first_of("/;"))];
            }
          }
          std::ostringstream line;
          line << kPassNames[pass] << ' ' << name_of(dtype) << ' '
               << (layout == Layout::contiguous ? "contiguous" : "channels_last") << " batch " << batch << ':';
          for (const auto& [kernel, count] : counts) line << ' ' << kernel << ' ' << count;
          line << ", " << std::hex << hash_of(all);
          std::string expected;
          std::getline(file, expected);
          EXPECT_EQ(line.str(), expected) << all;
          wrong += line.str() != expected;
        }
      }
    }
    ASSERT_LT(wrong, 5) << "more are not shown";
  }
  std::string rest;
  EXPECT_FALSE(std::getline(file, rest)) << rest;
}

/// A network's 7x7 convolutions, which have a bias: ConvNeXt-T's.
TEST_F(DepthwisePrior, TakesProductsForSevenBySeven) {
  if (!gpu::kCopiesRunAhead) GTEST_SKIP() << "this build's kernels are AMD's";
  constexpr Layer kConvNext[] = {{96, 56, 7, 1}, {192, 28, 7, 1}, {384, 14, 7, 1}, {768, 7, 7, 1}};
  for (const Layer& layer : kConvNext) {
    for (const DataType dtype : {DataType::float16, DataType::bfloat16}) {
      Problem problem(layer, 256, dtype, Layout::channels_last);
      problem.has_bias = true;
      const auto begins_with = [&](Pass pass, const std::string& text) {
        const std::string choices = problem.choices(pass);
        EXPECT_EQ(choices.rfind(text, 0), 0u) << layer.channels << " channels: " << choices;
      };
      begins_with(Pass::plain, "forward: hopper_patches/");
      begins_with(Pass::input, "backward: gpu_separate; grad_input: forward_hopper_patches/");
      begins_with(Pass::weight, "backward: gpu_separate; grad_weight: hopper_patches/");
    }
  }
}

}  // namespace
}  // namespace fusedsc
