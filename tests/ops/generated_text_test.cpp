/// Texts of generated kernels: that nvrtc and hiprtc take them, where they are found, which their shared memory is
/// asserted by; that no register is kept in memory; and how many there are beside the prediction, which is of nvrtc's.
#include <gtest/gtest.h>

#include "fusedsc/backward/depthwise/generated/depthwise_gradients_generated.h"
#include "fusedsc/backward/pointwise/generated/pointwise_gradients_generated.h"
#include "fusedsc/forward/depthwise/generated/depthwise_generated.h"
#include "fusedsc/forward/pointwise/generated/pointwise_generated.h"
#include "fusedsc/tuning/compiler/amd_code.h"
#include "fusedsc/tuning/compiler/compiler.h"
#include "ops/run_time_compilers.h"

namespace fusedsc::tuning {
namespace {

struct CompiledCase {
  DataType dtype;
  Layout layout;
  bool is_fused;
  const char* architecture;

  bool channels_inner() const { return layout == Layout::channels_last; }
  bool is_nvidia() const { return compiler_kind(architecture) == CompilerKind::nvrtc; }
  int copy_stages() const { return is_nvidia() ? 3 : 1; }  // kCopyStages of the vendors' headers
};
const CompiledCase kCompiled[] = {
    {DataType::float32, Layout::channels_last, false, "sm_90"},
    {DataType::float16, Layout::contiguous, true, "sm_80"},
    {DataType::bfloat16, Layout::channels_last, true, "sm_90"},
    {DataType::float32, Layout::channels_last, false, "gfx906"},
    {DataType::float16, Layout::contiguous, true, "gfx90a:sramecc+:xnack-"},
    {DataType::bfloat16, Layout::channels_last, true, "gfx90a"},
    {DataType::float32, Layout::channels_last, false, "gfx1030"},
};

/// Memory that nobody reads: texts depend on what is given, not on where.
alignas(16) char memory[16];

TensorView view_of(const CompiledCase& each, const Sizes& sizes) {
  return {memory, each.dtype, sizes, dense_strides(sizes, each.layout)};
}
ChannelVector vector_of(const CompiledCase& each, std::int64_t size) {
  return {memory, accumulation_type(each.dtype), size};
}

template <class Arguments>
Arguments forward_arguments(const CompiledCase& each, const Sizes& x, const Sizes& weight, const Sizes& y) {
  Arguments a;
  a.x = view_of(each, x);
  a.y = view_of(each, y);
  a.weight = TensorView(memory, each.dtype, weight, dense_strides(weight, Layout::contiguous));
  if (each.is_fused) {
    a.prologue = {vector_of(each, x[1]), vector_of(each, x[1]), Activation::relu6};
    a.epilogue.scale = vector_of(each, y[1]);
    a.epilogue.activation = Activation::relu;
  }
  return a;
}

/// Of one gradient.
template <class Arguments>
Arguments backward_arguments(const CompiledCase& each, Direction direction, const Sizes& x, const Sizes& weight,
                             const Sizes& y) {
  Arguments a;
  a.x = view_of(each, x);
  a.grad_y = view_of(each, y);
  const TensorView dense(memory, each.dtype, weight, dense_strides(weight, Layout::contiguous));
  a.weight = dense;
  const bool is_input = direction == Direction::grad_input;
  if (is_input) a.grad_x = view_of(each, x);
  else a.grad_weight = dense;
  if (!each.is_fused) return a;
  a.prologue = {vector_of(each, x[1]), vector_of(each, x[1]), Activation::relu6};
  a.gradient_prologue = {vector_of(each, y[1]), vector_of(each, y[1]), vector_of(each, y[1]), view_of(each, y)};
  if (is_input) a.sums = {vector_of(each, x[1]), vector_of(each, x[1]), vector_of(each, x[1]), {}};
  return a;
}

/// A few that are far apart, of all that there are.
std::vector<Config> some_of(const Configs& configs, std::size_t most) {
  std::vector<Config> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(configs[i * (configs.size() - 1) / (most - 1)]);
  return some;
}

/// Compiles texts, and remembers what was predicted of them.
class GeneratedText : public testing::TestWithParam<CompilerKind> {
 protected:
  void SetUp() override {
    const std::string& why_not = runtime_compiler(GetParam()).why_not();
    if (!can_compile(GetParam(), why_not)) GTEST_SKIP() << why_not;
  }

  /// Those of the compiler.
  static std::vector<CompiledCase> cases() {
    std::vector<CompiledCase> chosen;
    for (const CompiledCase& each : kCompiled) {
      if (compiler_kind(each.architecture) == GetParam()) chosen.push_back(each);
    }
    return chosen;
  }

  struct Report {
    int registers;
    bool spills;
  };
  static Report report_of(const std::string& text, const std::string& architecture) {
    const CompiledBinary binary = runtime_compiler(compiler_kind(architecture)).compile(text, architecture);
    if (const std::optional<AmdKernelResources> resources = amd_kernel_resources(binary.code)) {
      EXPECT_NE(binary.report.find(printed(*resources)), std::string::npos) << binary.report;
      return {resources->vgprs, binary.spills()};
    }
    const std::size_t place = binary.report.find("Used ");
    EXPECT_NE(place, std::string::npos) << text << binary.report;
    EXPECT_EQ(binary.spills(), binary.report.find(" 0 bytes spill stores") == std::string::npos) << binary.report;
    return {place == std::string::npos ? 0 : std::stoi(binary.report.substr(place + 5)), binary.spills()};
  }
  static int registers_of(const std::string& text, const std::string& architecture, bool may_spill) {
    const Report report = report_of(text, architecture);
    EXPECT_FALSE(report.spills && !may_spill) << text;
    return report.registers;
  }
  /// Registers are predicted as nvrtc takes them; of what hiprtc takes, the best of a list must not spill, others are
  /// left out when they are compiled.
  static bool may_spill(const CompiledCase& each, const std::vector<Config>& some, const Config& config) {
    return !each.is_nvidia() && config != some.front();
  }

  /// A sample, whose text a test may look at where it fails.
  template <class Resources>
  void compare(const std::string& text, const CompiledCase& each, const Resources& resources, bool may_spill) {
    const Report report = report_of(text, each.architecture);
    if (!each.is_nvidia()) {
      EXPECT_FALSE(report.spills && !may_spill) << text;
      return;
    }
    const int predicted = std::min(resources.used_registers, resources.limit_registers);
    ++samples_;
    if (report.spills) ++spilled_;
    if (10 * report.registers > 11 * predicted) {
      ++above_;
      which_ += std::to_string(report.registers) + " registers, not " + std::to_string(predicted) + ":\n" + text;
    }
    EXPECT_LE(4 * report.registers, 5 * predicted) << text;
  }

  /// Estimates: nine of ten samples are at most 10% above, and none more than 25%; one may spill, which is left out
  /// when it is compiled.
  void expect_predicted() const {
    EXPECT_LE(10 * above_, samples_) << which_;
    EXPECT_LE(spilled_, 1) << " of " << samples_;
  }

 private:
  int samples_ = 0, above_ = 0, spilled_ = 0;
  std::string which_;
};

TEST_P(GeneratedText, PointwiseCompiles) {
  for (const CompiledCase& each : cases()) {
    const auto a = forward_arguments<PointwiseArguments>(each, {1, 96, 14, 14}, {576, 96, 1, 1}, {1, 576, 14, 14});
    const generated::PointwiseTarget target{each.architecture,     132,  each.copy_stages(), each.is_nvidia(),
                                            each.channels_inner(), false};
    const std::vector<Config> some = some_of(generated::pointwise_configs(a, target), 2);
    for (const Config& config : some) {
      SCOPED_TRACE(printed(config));
      const generated::GeneratedText text = generated::pointwise_text(a, target, config);
      const int registers = registers_of(text.text, each.architecture, may_spill(each, some, config));
      if (!is_pointwise_tiling(config) || !each.is_nvidia()) continue;
      const int predicted = resources_of(pointwise_tiling_of(config), limits_of(each.architecture)).used_registers;
      EXPECT_LE(registers, predicted + predicted / 4) << text.text;  // Eq. 6 is an estimate
    }
  }
}

TEST_P(GeneratedText, PointwiseGradientsCompile) {
  for (const CompiledCase& each : cases()) {
    for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
      const auto a = backward_arguments<PointwiseBackwardArguments>(each, direction, {1, 96, 14, 14}, {576, 96, 1, 1},
                                                                    {1, 576, 14, 14});
      for (const bool elements : {false, true}) {
        if (elements && each.channels_inner() == (direction == Direction::grad_input)) continue;  // enough of them
        const generated::PointwiseTarget target{each.architecture,     132,     each.copy_stages(), each.is_nvidia(),
                                                each.channels_inner(), elements};
        const MatrixExtents extents{each.dtype,
                                    each.is_nvidia() && each.dtype == DataType::float32 && a.allow_tf32,
                                    each.channels_inner(),
                                    elements,
                                    each.copy_stages(),
                                    direction,
                                    each.is_fused,
                                    each.is_fused};
        const std::vector<Config> some = some_of(generated::pointwise_gradient_configs(a, target, direction), 2);
        for (const Config& config : some) {
          SCOPED_TRACE(testing::Message()
                       << words_of(direction) << ", elements " << elements << ": " << printed(config));
          compare(generated::pointwise_gradient_text(a, target, direction, config).text, each,
                  resources_of(matrix_tiling_of(config), extents, limits_of(each.architecture)),
                  may_spill(each, some, config));
        }
      }
    }
  }
  expect_predicted();
}

/// By fragments, of which only NVIDIA's GPUs have products.
TEST_P(GeneratedText, PointwiseFragmentsCompile) {
  if (GetParam() != CompilerKind::nvrtc) GTEST_SKIP() << "AMD's GPUs have no such products";
  const CompiledCase all[] = {{DataType::float32, Layout::channels_last, false, "sm_80"},
                              {DataType::float16, Layout::channels_last, true, "sm_80"},
                              {DataType::bfloat16, Layout::channels_last, true, "sm_90"}};
  for (const CompiledCase& each : all) {
    for (const FragmentRows memory : {FragmentRows::whole, FragmentRows::packed}) {
      const bool packed = memory == FragmentRows::packed;
      if (packed && size_of(each.dtype) != 2) continue;
      const std::int64_t channels = packed ? 94 : 96, outputs = packed ? 114 : 576;
      const Sizes x{1, channels, 14, 14}, weight{outputs, channels, 1, 1}, y{1, outputs, 14, 14};
      const generated::PointwiseTarget target{each.architecture, 132, each.copy_stages(), true, true, false, memory};
      for (const bool is_input : {false, true}) {
        const auto forward = forward_arguments<PointwiseArguments>(each, x, weight, y);
        const auto backward = backward_arguments<PointwiseBackwardArguments>(each, Direction::grad_input, x, weight, y);
        Configs configs = is_input ? generated::pointwise_gradient_configs(backward, target, Direction::grad_input)
                                   : generated::pointwise_configs(forward, target);
        std::erase_if(configs, [](const Config& config) { return !is_fragment_tiling(config); });
        const FragmentExtents extents{each.dtype,
                                      memory,
                                      is_input,
                                      each.is_fused,
                                      each.is_fused && is_input,
                                      static_cast<int>(is_input ? outputs : channels),
                                      static_cast<int>(is_input ? channels : outputs),
                                      each.is_fused && is_input ? 1 : 0};
        for (const Config& config : some_of(configs, 3)) {
          SCOPED_TRACE(testing::Message() << (is_input ? "grad_input: " : "forward: ") << printed(config));
          const generated::GeneratedText text =
              is_input ? generated::pointwise_gradient_text(backward, target, Direction::grad_input, config)
                       : generated::pointwise_text(forward, target, config);
          EXPECT_NE(text.text.find("FragmentsOfPass"), std::string::npos);
          compare(text.text, each, resources_of(fragment_tiling_of(config), extents, limits_of(each.architecture)),
                  false);
        }
      }
    }
  }
  expect_predicted();
}

TEST_P(GeneratedText, DepthwiseCompiles) {
  for (const CompiledCase& each : cases()) {
    auto a = forward_arguments<DepthwiseArguments>(each, {1, 96, 15, 15}, {96, 1, 3, 3}, {1, 96, 15, 15});
    a.window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
    const generated::DepthwiseTarget target{each.architecture, each.is_nvidia(), each.channels_inner() ? 8 : 1};
    const std::vector<Config> some = some_of(generated::depthwise_configs(a, target), 2);
    for (const Config& config : some) {
      SCOPED_TRACE(printed(config));
      registers_of(generated::depthwise_text(a, target, config).text, each.architecture, may_spill(each, some, config));
    }
  }
}

TEST_P(GeneratedText, DepthwiseGradientsCompile) {
  for (const CompiledCase& each : cases()) {
    for (const Direction direction : {Direction::grad_input, Direction::grad_weight}) {
      auto a = backward_arguments<DepthwiseBackwardArguments>(each, direction, {1, 96, 15, 15}, {96, 1, 3, 3},
                                                              {1, 96, 8, 8});
      a.window = {{3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}};
      const generated::DepthwiseTarget target{each.architecture, each.is_nvidia(), each.channels_inner() ? 8 : 1};
      const DepthwiseExtents extents{each.dtype,
                                     3,
                                     2,
                                     8,
                                     target.joined_channels,
                                     each.is_fused && direction == Direction::grad_input,
                                     true,
                                     direction,
                                     each.is_fused};
      const std::vector<Config> some = some_of(generated::depthwise_gradient_configs(a, target, direction), 3);
      for (const Config& config : some) {
        SCOPED_TRACE(testing::Message() << words_of(direction) << ": " << printed(config));
        compare(generated::depthwise_gradient_text(a, target, direction, config).text, each,
                resources_of(depthwise_tiling_of(config), extents, limits_of(each.architecture)),
                may_spill(each, some, config));
      }
    }
  }
  expect_predicted();
}

INSTANTIATE_TEST_SUITE_P(Compilers, GeneratedText, testing::Values(CompilerKind::nvrtc, CompilerKind::hiprtc),
                         [](const auto& of) { return of.param == CompilerKind::nvrtc ? "nvrtc" : "hiprtc"; });

}  // namespace
}  // namespace fusedsc::tuning
