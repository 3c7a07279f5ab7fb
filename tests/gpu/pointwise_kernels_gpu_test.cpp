/// The registry of pointwise kernels: every kernel by force, on problems that fit it, on a GPU with every config that
/// any of these has, on the host executor with configs that are far apart; that explain, the trace and the plan say the
/// same; and what force says when it cannot.
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "gpu/pointwise_forced.h"

namespace fusedsc::reference {
namespace {

constexpr const char *kForwardRole = kPointwiseForward, *kBackwardRole = kPointwiseBackward,
                     *kInputRole = kPointwiseInput, *kWeightRole = kPointwiseWeight;

using Forward = PointwiseForwardCase;
using Backward = PointwiseBackwardCase;

class PointwiseKernelsGpu : public OnGpu {
 protected:
  /// Whether products may be TensorFloat-32's: on what plays an NVIDIA GPU.
  static bool is_tf32() { return GetParam().dtype == DataType::float32 && GetParam().wave_size == 32; }

  static std::vector<PointwiseGeometry> geometries() {
    std::vector<PointwiseGeometry> all = {{{2, 24, 8, 8}, 40},   {{3, 136, 7, 7}, 72},  {{1, 264, 5, 13}, 104},
                                          {{2, 72, 14, 14}, 80}, {{1, 16, 12, 14}, 96}, {{1, 144, 12, 14}, 24},
                                          {{5, 64, 1, 1}, 1},    {{1, 40, 17, 19}, 1},  {{1, 16, 26, 30}, 24},
                                          {{2, 20, 17, 17}, 36}, {{2, 33, 5, 7}, 35},   {{1, 32, 8, 18}, 192}};
    for (PointwiseGeometry& geometry : all) geometry.tf32 = is_tf32();
    all.push_back({{2, 24, 5, 7}, 36, 3});
    return all;
  }

  static std::vector<Memory> memories() { return {Memory::contiguous, Memory::channels_last}; }

  static bool has_hopper() { return has_hopper_pointwise(GetParam().dtype); }

  /// Whether every kernel had a problem, of those that this GPU and type have any.
  template <class Kernels>
  static void expect_all(const Kernels& kernels, const std::map<std::string, int>& runs) {
    const auto starts_with = [](const std::string& name, const char* part) { return name.rfind(part, 0) == 0; };
    const bool is_half = size_of(GetParam().dtype) == 2;
    for (const auto& kernel : kernels) {
      const std::string name = kernel.name;
      if (name == "cpu" || name == "generated" || (starts_with(name, "hopper") && !has_hopper())) continue;
      if (!is_half && (name == "hopper_narrow" || name == "hopper_rows")) continue;
      if (!is_half && !has_hopper() && name == "gpu_fragments") continue;
      EXPECT_GT(runs.count(name), 0u) << "no problem of this test is for " << name;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseKernelsGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwiseKernelsGpu, Forward) {
  using enum ForwardFusion::Output;
  const ForwardFusion fusion[] = {
      {},
      {.bias = true},
      {.prologue = true, .activation = Activation::relu6, .output = statistics},
      {.output = statistics},
      {.output = epilogue, .epilogue_activation = Activation::relu, .residual = true},
  };
  const bool is_bfloat16 = GetParam().dtype == DataType::bfloat16;  // float16, but for conversions
  std::map<std::string, int> runs;
  ConfigTour tour;
  std::size_t number = 0;
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const Memory memory : memories()) {
      for (const ForwardFusion& each : {fusion[0], fusion[1 + (number + number / 4) % 4]}) {
        const Forward problem{GetParam().dtype, geometry, each, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        ForwardTensors<PointwiseGeometry> tensors(problem);
        const PointwiseArguments arguments = tensors.arguments(problem);
        for (const auto& kernel : able(gpu::pointwise_gpu_kernels(), arguments)) {
          for (const std::string& choice : tour.next(kernel, arguments, is_bfloat16 ? 1 : 2)) {
            verify_by(kForwardRole, choice, [&] { verify_forward(problem); });
            ++runs[kernel.name];
            if (HasFailure()) return;
          }
        }
      }
      ++number;
    }
  }
  expect_all(gpu::pointwise_gpu_kernels(), runs);
  tour.record(kForwardRole);
}

TEST_P(PointwiseKernelsGpu, Backward) {
  const BackwardFusion of_x{.gradient_prologue = true, .grad_bias = false, .output_is_of_x = true},
      training{.prologue = true,
               .activation = Activation::relu6,
               .gradient_prologue = true,
               .sums = true,
               .grad_bias = false},
      each_fusion[] = {{.grad_bias = false},
                       {.grad_weight = false, .grad_bias = false},
                       {.grad_x = false},
                       of_x,
                       training,
                       {.grad_x = false, .grad_bias = false}};
  std::vector<Backward> problems;
  const auto add = [&](PointwiseGeometry geometry, const BackwardFusion& fusion, Memory memory) {
    if (geometry.groups == 1) geometry.tf32 = is_tf32();
    const Backward problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
    for (const Backward& each : with_halves(problem)) problems.push_back(each);
  };
  std::size_t fusions = 0;
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const Memory memory : memories()) add(geometry, each_fusion[fusions++ % std::size(each_fusion)], memory);
  }
  // Expansions and projections, for the kernels that compute both gradients at once.
  for (const Memory memory : memories()) {
    add({{2, 16, 21, 23}, 96}, of_x, memory);
    add({{2, 32, 14, 9}, 192}, of_x, memory);
    add({{2, 32, 9, 13}, 16}, training, memory);
    add({{1, 8, 24, 26}, 16}, each_fusion[0], memory);
    add({{1, 456, 5, 7}, 328}, training, memory);
  }
  std::map<std::string, int> runs;
  ConfigTour tour;
  for (const Backward& problem : problems) {
    SCOPED_TRACE(testing::PrintToString(problem));
    BackwardTensors<PointwiseGeometry> tensors(problem);
    const PointwiseBackwardArguments arguments = tensors.arguments(problem);
    for (const auto& kernel : able(pointwise_backward_kernels(), arguments)) {
      for (const std::string& choice : tour.next(kernel, arguments, 1)) {
        verify_by(kBackwardRole, choice, [&] { verify_backward(problem); });
        ++runs[kernel.name];
        if (HasFailure()) return;
      }
    }
  }
  expect_all(pointwise_backward_kernels(), runs);
  tour.record(kBackwardRole);
}

/// Of one gradient, which has tiles to choose from: configs from all over the lists.
TEST_P(PointwiseKernelsGpu, OneGradient) {
  if (!has_hopper()) GTEST_SKIP() << "on Hopper GPUs";
  constexpr std::size_t kMost = 6;
  const BackwardFusion only_input{.grad_weight = false, .grad_bias = false},
      only_weight{.grad_x = false, .grad_bias = false},
      normalised{.prologue = true, .gradient_prologue = true, .grad_x = false, .grad_bias = false};
  std::map<std::string, std::size_t> configs;
  std::size_t number = 0;
  for (const PointwiseGeometry& geometry :
       {PointwiseGeometry{{3, 72, 14, 14}, 80, 1, is_tf32()}, {{2, 24, 12, 14}, 136, 1, is_tf32()}}) {
    for (const Memory memory : memories()) {
      for (const BackwardFusion& fusion : {only_input, only_weight, normalised}) {
        const Backward problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        BackwardTensors<PointwiseGeometry> tensors(problem);
        const PointwiseBackwardArguments arguments = tensors.arguments(problem);
        for (const auto& kernel : able(pointwise_backward_kernels(), arguments,
                                       {"hopper", "hopper_planes", "hopper_warp_sliced_k", "hopper_narrow"})) {
          for (const std::string& choice : some_choices(kernel, arguments, number, kMost)) {
            verify_by(kBackwardRole, choice, [&] { verify_backward(problem); });
            if (choice.find('/') != std::string::npos) ++configs[kernel.name];
            if (HasFailure()) return;
          }
        }
        ++number;
      }
    }
  }
  for (const char* kernel : {"hopper", "hopper_planes", "hopper_warp_sliced_k"})
    EXPECT_GT(configs[kernel], kMost) << kernel;
}

/// A config of another problem, or of none, is said to be one; nothing else runs in its place.
TEST_P(PointwiseKernelsGpu, ConfigsThatDoNotFit) {
  if (!has_hopper()) GTEST_SKIP() << "on Hopper GPUs";
  for (const Memory memory : memories()) {
    const Backward problem{GetParam().dtype,
                           {{3, 72, 14, 14}, 80, 1, is_tf32()},
                           {.grad_x = false, .grad_bias = false},
                           Memories::all(memory)};
    BackwardTensors<PointwiseGeometry> tensors(problem);
    const PointwiseBackwardArguments arguments = tensors.arguments(problem);
    for (const auto& kernel :
         able(pointwise_backward_kernels(), arguments, {"hopper", "hopper_warp_sliced_k", "hopper_narrow"})) {
      for (const char* config : {"rows=64", "rows=64 columns=64 groups=8 splits=100000 depth=32", "groups=3 depth=7"}) {
        EXPECT_THROW(kernel.plan(arguments, tuning::parsed(config), 1), Unsupported) << kernel.name << '/' << config;
      }
    }
  }
}

/// Products of TensorFloat-32 take what a prologue makes of float32, and it of float32 as it lies in memory: nothing is
/// rounded before most of it is taken away.
TEST_P(PointwiseKernelsGpu, Tf32BehindPrologues) {
  if (!is_tf32()) GTEST_SKIP() << "has no TensorFloat-32";
  std::map<std::string, int> runs, gradient_runs;
  for (const PointwiseGeometry& geometry : geometries()) {
    if (geometry.groups > 1) continue;
    for (const Memory memory : memories()) {
      const Forward forward{GetParam().dtype, geometry, {.prologue = true, .cancels = true}, Memories::all(memory)};
      const Backward backward{GetParam().dtype,
                              geometry,
                              {.prologue = true, .gradient_prologue = true, .grad_bias = false, .cancels = true},
                              Memories::all(memory)};
      SCOPED_TRACE(testing::PrintToString(forward));
      ForwardTensors<PointwiseGeometry> tensors(forward);
      for (const auto& kernel : able(gpu::pointwise_gpu_kernels(), tensors.arguments(forward))) {
        verify_by(kForwardRole, kernel.name, [&] { verify_forward(forward); });
        ++runs[kernel.name];
      }
      for (const Backward& each : with_halves(backward)) {
        BackwardTensors<PointwiseGeometry> gradients(each);
        for (const auto& kernel : able(pointwise_backward_kernels(), gradients.arguments(each))) {
          verify_by(kBackwardRole, kernel.name, [&] { verify_backward(each); });
          ++gradient_runs[kernel.name];
        }
      }
    }
  }
  for (const char* kernel : {"hopper_planes_sliced_k", "gpu_tiles"}) EXPECT_GT(runs[kernel], 0) << kernel;
  for (const char* kernel : {"hopper_planes", "hopper_warp_sliced_k", "gpu_tiles"})
    EXPECT_GT(gradient_runs[kernel], 0) << kernel;
}

/// Factors are rounded to TensorFloat-32. Tensor cores would cut them off, which makes every product too small: here by
/// more than the bounds leave, of whichever factor.
TEST_P(PointwiseKernelsGpu, Tf32Rounds) {
  if (!is_tf32()) GTEST_SKIP() << "has no TensorFloat-32";
  using enum ForwardFusion::Output;
  const ForwardFusion each_forward[] = {
      {.nearly_tf32 = true},
      {.prologue = true, .output = statistics, .nearly_tf32 = true},
      {.output = statistics, .nearly_tf32 = true},
      {.output = epilogue, .nearly_tf32 = true},
      {.prologue = true, .activation = Activation::relu, .nearly_tf32 = true},
  };
  const BackwardFusion of_x{.gradient_prologue = true, .grad_bias = false, .output_is_of_x = true, .nearly_tf32 = true},
      training{.prologue = true,
               .activation = Activation::relu6,
               .gradient_prologue = true,
               .sums = true,
               .grad_bias = false,
               .nearly_tf32 = true},
      each_backward[] = {{.grad_weight = false, .grad_bias = false, .nearly_tf32 = true},
                         {.grad_x = false, .grad_bias = false, .nearly_tf32 = true},
                         {.grad_bias = false, .nearly_tf32 = true},
                         of_x,
                         training};
  // An expansion and a projection, for the kernels of both gradients at once, with everything; others with some.
  std::vector<PointwiseGeometry> all = {
      {{2, 32, 14, 9}, 192, 1, true}, {{2, 32, 9, 13}, 16, 1, true}, {{1, 456, 5, 7}, 96, 1, true}};
  const std::size_t complete = all.size();
  for (const PointwiseGeometry& geometry : geometries()) {
    if (geometry.groups == 1) all.push_back(geometry);
  }
  std::vector<Forward> forward;
  std::vector<Backward> backward;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const Memory memory : memories()) {
      for (std::size_t j = 0; j < 5; ++j) {
        if (i >= complete && (i + j) % 3 != 0) continue;
        forward.push_back({GetParam().dtype, all[i], each_forward[j], Memories::all(memory)});
        const Backward both{GetParam().dtype, all[i], each_backward[j], Memories::all(memory)};
        for (const Backward& each : with_halves(both)) backward.push_back(each);
      }
    }
  }
  std::map<std::string, int> runs, gradient_runs;
  for (std::size_t i = 0; i < forward.size(); ++i) {
    SCOPED_TRACE(testing::PrintToString(forward[i]));
    ForwardTensors<PointwiseGeometry> tensors(forward[i]);
    const PointwiseArguments arguments = tensors.arguments(forward[i]);
    for (const auto& kernel : able(gpu::pointwise_gpu_kernels(), arguments)) {
      for (const std::string& choice : some_choices(kernel, arguments, i, 1)) {
        verify_by(kForwardRole, choice, [&] { verify_forward(forward[i]); });
        ++runs[kernel.name];
        if (HasFailure()) return;
      }
    }
  }
  for (std::size_t i = 0; i < backward.size(); ++i) {
    SCOPED_TRACE(testing::PrintToString(backward[i]));
    BackwardTensors<PointwiseGeometry> tensors(backward[i]);
    const PointwiseBackwardArguments arguments = tensors.arguments(backward[i]);
    for (const auto& kernel : able(pointwise_backward_kernels(), arguments)) {
      for (const std::string& choice : some_choices(kernel, arguments, i, 1)) {
        verify_by(kBackwardRole, choice, [&] { verify_backward(backward[i]); });
        ++gradient_runs[kernel.name];
        if (HasFailure()) return;
      }
    }
  }
  expect_all(gpu::pointwise_gpu_kernels(), runs);
  expect_all(pointwise_backward_kernels(), gradient_runs);
}

/// Some of the tensor's elements: NaNs, of either sign and as GPUs make them, and infinities.
void make_wild(Tensor& tensor, Random& random, std::int64_t count) {
  const double wild[] = {std::bit_cast<double>(~std::uint64_t{0} >> 1), -std::numeric_limits<double>::quiet_NaN(),
                         HUGE_VAL, -HUGE_VAL};
  Array values = tensor.values();
  for (std::int64_t i = 0; i < count; ++i) {
    values.elements[random() % values.elements.size()].value = wild[static_cast<std::size_t>(i) % std::size(wild)];
  }
  tensor.fill(values);
}

/// What plain arithmetic makes of float32: NaN and infinity there and nowhere else, and about the same numbers.
void expect_plain(const Tensor& tensor, const Array& expected, const char* name) {
  const Array actual = tensor.values();
  for (std::size_t i = 0; i < actual.elements.size(); ++i) {
    const double value = actual.elements[i].value, plain = expected.elements[i].value;
    if (std::isnan(plain)) ASSERT_TRUE(std::isnan(value)) << name << " " << i << ": " << value;
    else if (std::isinf(plain)) ASSERT_EQ(value, plain) << name << " " << i;
    else ASSERT_NEAR(value, plain, std::abs(plain) * 0x1p-9) << name << " " << i;
  }
}

/// What is no number stays what it is on its way to TensorFloat-32.
TEST_P(PointwiseKernelsGpu, Tf32KeepsWhatIsNoNumber) {
  if (!is_tf32()) GTEST_SKIP() << "has no TensorFloat-32";
  const Precision precision(GetParam().dtype);
  const BackwardFusion only_input{.grad_weight = false, .grad_bias = false, .nearly_tf32 = true},
      only_weight{.grad_x = false, .grad_bias = false, .nearly_tf32 = true};
  std::size_t number = 0;
  for (PointwiseGeometry geometry : geometries()) {
    if (geometry.groups > 1) continue;
    const PointwiseGeometry plain{geometry.x, geometry.outputs};
    for (const Memory memory : memories()) {
      Random random(5);
      const Forward forward{GetParam().dtype, geometry, {.nearly_tf32 = true}, Memories::all(memory)};
      SCOPED_TRACE(testing::PrintToString(forward));
      ForwardTensors<PointwiseGeometry> tensors(forward);
      make_wild(tensors.x, random, 4);
      make_wild(tensors.weight, random, number % 2);
      const Array y = plain.forward(precision, tensors.x.values(), tensors.weight.values(), {});
      const PointwiseArguments arguments = tensors.arguments(forward);
      for (const auto& kernel : able(gpu::pointwise_gpu_kernels(), arguments)) {
        for (const std::string& choice : some_choices(kernel, arguments, number, 1)) {
          verify_by(kForwardRole, choice, [&] {
            run(PointwiseGeometry::kForward, arguments);
            expect_plain(tensors.y, y, "y");
          });
          if (HasFailure()) return;
        }
      }
      for (const BackwardFusion& fusion : {only_input, only_weight}) {
        const Backward backward{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        BackwardTensors<PointwiseGeometry> gradients(backward);
        make_wild(gradients.grad_y, random, 4);
        make_wild(fusion.grad_x ? gradients.weight : gradients.x, random, number % 2);
        const Array grad_x = plain.input_gradient(precision, gradients.grad_y.values(), gradients.weight.values()),
                    grad_weight = plain.weight_gradient(precision, gradients.grad_y.values(), gradients.x.values());
        const PointwiseBackwardArguments arguments_of_gradients = gradients.arguments(backward);
        for (const auto& kernel : able(pointwise_backward_kernels(), arguments_of_gradients)) {
          for (const std::string& choice : some_choices(kernel, arguments_of_gradients, number, 1)) {
            verify_by(kBackwardRole, choice, [&] {
              run(PointwiseGeometry::kBackward, arguments_of_gradients);
              if (fusion.grad_x) expect_plain(gradients.grad_x, grad_x, "grad_x");
              else expect_plain(gradients.grad_weight, grad_weight, "grad_weight");
            });
            if (HasFailure()) return;
          }
        }
      }
      ++number;
    }
  }
}

/// Where both are wanted each may be forced.
TEST_P(PointwiseKernelsGpu, GradientsApart) {
  if (!has_hopper()) GTEST_SKIP() << "on Hopper GPUs";
  const Backward problem{
      GetParam().dtype, {{3, 136, 8, 8}, 72, 1, is_tf32()}, {.grad_bias = false}, Memories::all(Memory::contiguous)};
  const Forced separate(kBackwardRole, "gpu_separate");
  for (const char* weight : {"hopper_warp_sliced_k", "gpu_tiles"}) {
    verify_by(kWeightRole, weight, [&] { verify_backward(problem); });
  }
  for (const char* input : {"hopper_planes", "gpu_tiles"}) {
    verify_by(kInputRole, input, [&] { verify_backward(problem); });
  }
}

/// There may be nothing to compute.
TEST_P(PointwiseKernelsGpu, NoGradient) {
  for (const Memory memory : memories()) {
    verify_backward<PointwiseGeometry>({GetParam().dtype,
                                        {{2, 24, 5, 7}, 36},
                                        {.grad_x = false, .grad_weight = false, .grad_bias = false},
                                        Memories::all(memory)});
  }
}

/// The kernel and config that explain prints are those that run without force, and the prior's.
TEST_P(PointwiseKernelsGpu, ExplainSaysWhatRuns) {
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const Memory memory : memories()) {
      const Forward problem{GetParam().dtype, geometry, {}, Memories::all(memory)};
      SCOPED_TRACE(testing::PrintToString(problem));
      ForwardTensors<PointwiseGeometry> tensors(problem);
      const PointwiseArguments arguments = tensors.arguments(problem);
      const std::string choice = expect_explained(kForwardRole, explain_pointwise_conv2d(arguments),
                                                  [&] { run(PointwiseGeometry::kForward, arguments); });
      verify_by(kForwardRole, choice, [&] { verify_forward(problem); });
    }
  }
}

/// Nothing runs in the place of what is forced, and the next call works.
TEST_P(PointwiseKernelsGpu, ForceSaysWhatItCannot) {
  const Forward problem{GetParam().dtype, {{1, 16, 8, 8}, 24}, {}, Memories::all(Memory::channels_last)};
  ForwardTensors<PointwiseGeometry> tensors(problem);
  const PointwiseArguments arguments = tensors.arguments(problem);
  for (const char* choice : {"gpu_skinny", "gpu_tiles/rows=7 columns=64 depth=64", "gpu_tiles/stages=3", "cpu"}) {
    const Forced forced(kForwardRole, choice);
    EXPECT_THROW(run(PointwiseGeometry::kForward, arguments), Unsupported) << choice;
  }
  verify_forward(problem);
}

}  // namespace
}  // namespace fusedsc::reference
