/// "gpu_fragments" on tensors of whole runs of 16 bytes, of 16 bits and of floats with TF32, by force: every config,
/// with anything fused; and that nothing of one position reaches another. Other tensors: pointwise_packed_gpu_test.cpp.
#include <cmath>
#include <set>
#include <string>

#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "gpu/forced.h"
#include "gpu/pointwise_fragments_cases.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

using Forward = ForwardCase<PointwiseGeometry>;
using Backward = BackwardCase<PointwiseGeometry>;

class PointwiseFragmentsGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (GetParam().dtype == DataType::float64) GTEST_SKIP() << "for 16-bit types and TensorFloat-32";
    if (GetParam().wave_size != 32) GTEST_SKIP() << "NVIDIA's GPUs have waves of 32";
    use_gpu_shared_memory(std::size_t{163} * 1024);  // an A100's
  }
  void TearDown() override {
    use_gpu_shared_memory(0);
    OnGpu::TearDown();
  }

  static bool is_half() { return size_of(GetParam().dtype) == 2; }

  /// Less than a chunk of k, one, several and a part; less than a tile of outputs, one, several and a part; groups; few
  /// positions, and several tiles of a block.
  static std::vector<PointwiseGeometry> geometries() {
    std::vector<PointwiseGeometry> all = {{{2, 8, 31, 41}, 96}, {{1, 120, 17, 23}, 104}, {{3, 32, 5, 7}, 8},
                                          {{1, 72, 1, 1}, 40},  {{2, 80, 9, 31}, 32, 2}, {{1, 200, 3, 5}, 16}};
    if (is_half()) return all;
    all.insert(all.end(), {{{1, 4, 9, 11}, 12}, {{2, 60, 7, 9}, 36, 3}});  // runs are of four
    for (PointwiseGeometry& geometry : all) geometry.tf32 = true;
    return all;
  }

  /// use() with each config, forced.
  template <class Arguments, class Use>
  void for_each_config(const char* role, const char* direction, std::span<const tuning::Kernel<Arguments>> kernels,
                       const Arguments& arguments, const Use& use) {
    const auto found = able(kernels, arguments, {"gpu_fragments"});
    ASSERT_FALSE(found.empty());
    std::set<std::string> names;
    for (const tuning::Config& config : found[0].configs(arguments)) {
      EXPECT_TRUE(names.insert(tuning::printed(config)).second) << tuning::printed(config) << " is there twice";
      verify_by(role, "gpu_fragments/" + tuning::printed(config), use);
      used_.insert(direction + tuning::printed(config));
      if (HasFailure()) return;
    }
  }
  template <class Use>
  void for_each_config(const PointwiseArguments& arguments, const Use& use) {
    for_each_config("pointwise_conv2d.forward", "", gpu::pointwise_gpu_kernels(), arguments, use);
  }
  template <class Use>
  void for_each_config(const PointwiseBackwardArguments& arguments, const Use& use) {
    for_each_config("pointwise_conv2d.backward", arguments.grad_x ? "input " : "weight ", pointwise_backward_kernels(),
                    arguments, use);
  }

  std::set<std::string> used_;
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseFragmentsGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwiseFragmentsGpu, Forward) {
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const ForwardFusion& fusion : forward_fusions({.bias = true})) {
      const Forward problem{GetParam().dtype, geometry, fusion, Memories::all(Memory::channels_last)};
      SCOPED_TRACE(testing::PrintToString(problem));
      ForwardTensors<PointwiseGeometry> tensors(problem);
      for_each_config(tensors.arguments(problem), [&] { verify_forward(problem); });
    }
  }
  EXPECT_GE(used_.size(), 17u);
}

TEST_P(PointwiseFragmentsGpu, Backward) {
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const bool is_weight : {false, true}) {
      for (const Activation activation : {Activation::identity, Activation::relu6, Activation::silu}) {
        const Backward problem{GetParam().dtype, geometry, backward_fusion(activation, is_weight),
                               Memories::all(Memory::channels_last)};
        SCOPED_TRACE(testing::PrintToString(problem));
        BackwardTensors<PointwiseGeometry> tensors(problem);
        for_each_config(tensors.arguments(problem), [&] { verify_backward(problem); });
      }
    }
  }
  EXPECT_GE(used_.size(), is_half() ? 23u : 26u);
}

/// Runs of a larger tensor: nothing is read or written between them.
TEST_P(PointwiseFragmentsGpu, SomeChannels) {
  const PointwiseGeometry geometry{{2, 72, 9, 15}, 40, 1, !is_half()};
  const auto memories = Memories::all(Memory::some_runs);
  for (const ForwardFusion& fusion : forward_fusions({.bias = true})) {
    const Forward problem{GetParam().dtype, geometry, fusion, memories};
    SCOPED_TRACE(testing::PrintToString(problem));
    ForwardTensors<PointwiseGeometry> tensors(problem);
    for_each_config(tensors.arguments(problem), [&] { verify_forward(problem); });
  }
  for (const bool is_weight : {false, true}) {
    for (const Activation activation : {Activation::identity, Activation::relu6, Activation::silu}) {
      const Backward problem{GetParam().dtype, geometry, backward_fusion(activation, is_weight), memories};
      SCOPED_TRACE(testing::PrintToString(problem));
      BackwardTensors<PointwiseGeometry> tensors(problem);
      for_each_config(tensors.arguments(problem), [&] { verify_backward(problem); });
    }
  }
}

/// Where sums of squares would cancel: deviations are from a value that the thread has seen, whichever part it is of.
TEST_P(PointwiseFragmentsGpu, StatisticsFarFromZero) {
  const Forward problem{GetParam().dtype,
                        {{1, 72, 9, 31}, 40, 1, !is_half()},
                        {.bias = true, .output = ForwardFusion::Output::statistics},
                        Memories::all(Memory::channels_last)};
  ForwardTensors<PointwiseGeometry> tensors(problem);
  Random random(3);
  tensors.bias.fill(random, 9000, 11000);
  const auto arguments = tensors.arguments(problem);
  const Vector exact = moments(Precision(problem.dtype), tensors.raw_output(problem)).m2;
  for_each_config(arguments, [&] {
    run(PointwiseGeometry::kForward, arguments, 1, 0xff);
    const Vector m2 = tensors.m2.values();
    for (std::size_t i = 0; i < exact.size(); ++i) ASSERT_NEAR(m2[i].value, exact[i].value, exact[i].value / 50) << i;
  });
}

/// Distances that its addresses do not hold are others' matter.
TEST_P(PointwiseFragmentsGpu, PositionsFarApart) {
  const PointwiseGeometry geometry{{2, 8, 1, 1}, 8, 1, !is_half()};
  constexpr std::int64_t kFar = std::int64_t{1} << 24;
  const Forward forward{GetParam().dtype, geometry, {}, Memories::all(Memory::channels_last)};
  ForwardTensors<PointwiseGeometry> tensors(forward);
  const Backward backward{
      GetParam().dtype, geometry, {.grad_weight = false, .grad_bias = false}, Memories::all(Memory::channels_last)};
  BackwardTensors<PointwiseGeometry> gradients(backward);
  for (const std::int64_t distance : {kFar - 8, kFar}) {
    auto arguments = tensors.arguments(forward);
    arguments.y.strides[0] = distance;
    EXPECT_EQ(able(gpu::pointwise_gpu_kernels(), arguments, {"gpu_fragments"}).empty(), distance == kFar);
    auto of_gradients = gradients.arguments(backward);
    of_gradients.x.strides[0] = distance;
    EXPECT_EQ(able(pointwise_backward_kernels(), of_gradients, {"gpu_fragments"}).empty(), distance == kFar);
  }
}

/// Of both factors, with a prologue and without: cut off, they would be far from the rounded ones.
TEST_P(PointwiseFragmentsGpu, FactorsAreRounded) {
  if (is_half()) GTEST_SKIP() << "for TensorFloat-32";
  const PointwiseGeometry geometry{{2, 72, 5, 7}, 44, 1, true};
  for (const bool has_prologue : {false, true}) {
    const Forward forward{GetParam().dtype,
                          geometry,
                          {.prologue = has_prologue, .nearly_tf32 = true},
                          Memories::all(Memory::channels_last)};
    ForwardTensors<PointwiseGeometry> tensors(forward);
    for_each_config(tensors.arguments(forward), [&] { verify_forward(forward); });
    for (const bool is_weight : {false, true}) {
      const Backward backward{GetParam().dtype,
                              geometry,
                              {.prologue = has_prologue,
                               .gradient_prologue = has_prologue,
                               .grad_x = !is_weight,
                               .grad_weight = is_weight,
                               .grad_bias = is_weight,
                               .nearly_tf32 = true},
                              Memories::all(Memory::channels_last)};
      BackwardTensors<PointwiseGeometry> gradients(backward);
      for_each_config(gradients.arguments(backward), [&] { verify_backward(backward); });
    }
  }
}

/// float32 whose factors may not be rounded is not for it.
TEST_P(PointwiseFragmentsGpu, WithoutPermission) {
  if (is_half()) GTEST_SKIP() << "for float32";
  const PointwiseGeometry geometry{{1, 8, 3, 3}, 8};
  const Forward forward{GetParam().dtype, geometry, {}, Memories::all(Memory::channels_last)};
  ForwardTensors<PointwiseGeometry> tensors(forward);
  EXPECT_TRUE(able(gpu::pointwise_gpu_kernels(), tensors.arguments(forward), {"gpu_fragments"}).empty());
  const Backward backward{GetParam().dtype, geometry, {}, Memories::all(Memory::channels_last)};
  BackwardTensors<PointwiseGeometry> gradients(backward);
  EXPECT_TRUE(able(pointwise_backward_kernels(), gradients.arguments(backward), {"gpu_fragments"}).empty());
}

/// A NaN in one position makes that one NaN, and no other; one in the weight its output's.
TEST_P(PointwiseFragmentsGpu, NotANumber) {
  const PointwiseGeometry geometry{{1, 72, 9, 31}, 40, 1, !is_half()};
  constexpr std::int64_t kRow = 4, kColumn = 12, kOutput = 33;
  for (const bool has_fusion : {false, true}) {
    const Forward forward{GetParam().dtype,
                          geometry,
                          {.prologue = has_fusion, .activation = has_fusion ? Activation::relu : Activation::identity},
                          Memories::all(Memory::channels_last)};
    ForwardTensors<PointwiseGeometry> tensors(forward);
    const Array x = tensors.x.values();
    Array bad = x;
    bad.at(0, 5, kRow, kColumn).value = NAN;
    tensors.x.fill(bad);
    const auto arguments = tensors.arguments(forward);
    for_each_config(arguments, [&] {
      tensors.y.wipe();
      run(PointwiseGeometry::kForward, arguments, 1, 0xff);
      expect_one_position(tensors.y.values(), kRow, kColumn);
    });
    tensors.x.fill(x);
    Array weight = tensors.weight.values();
    weight.at(kOutput, 71, 0, 0).value = NAN;
    tensors.weight.fill(weight);
    for_each_config(arguments, [&] {
      tensors.y.wipe();
      run(PointwiseGeometry::kForward, arguments, 1, 0xff);
      const Array y = tensors.y.values();
      for_each_index(y.sizes, [&](auto n, auto c, auto h, auto w) {
        ASSERT_EQ(std::isnan(y.at(n, c, h, w).value), c == kOutput) << c << ' ' << h << ' ' << w;
      });
    });

    const Backward backward{
        GetParam().dtype,
        geometry,
        {.prologue = has_fusion, .gradient_prologue = has_fusion, .grad_weight = false, .grad_bias = false},
        Memories::all(Memory::channels_last)};
    BackwardTensors<PointwiseGeometry> gradients(backward);
    Array grad_y = gradients.grad_y.values();
    grad_y.at(0, 7, kRow, kColumn).value = NAN;
    gradients.grad_y.fill(grad_y);
    const auto of_gradient = gradients.arguments(backward);
    for_each_config(of_gradient, [&] {
      gradients.grad_x.wipe();
      run(PointwiseGeometry::kBackward, of_gradient, 1, 0xff);
      expect_one_position(gradients.grad_x.values(), kRow, kColumn);
    });

    // Of the weight's gradient those of the channel that has it.
    const Backward of_weight{GetParam().dtype,
                             geometry,
                             {.prologue = has_fusion, .gradient_prologue = has_fusion, .grad_x = false},
                             Memories::all(Memory::channels_last)};
    BackwardTensors<PointwiseGeometry> of_positions(of_weight);
    Array of_channel = of_positions.x.values();
    of_channel.at(0, kOutput, kRow, kColumn).value = NAN;
    of_positions.x.fill(of_channel);
    const auto weight_arguments = of_positions.arguments(of_weight);
    for_each_config(weight_arguments, [&] {
      of_positions.grad_weight.wipe();
      run(PointwiseGeometry::kBackward, weight_arguments, 1, 0xff);
      expect_one_channel(of_positions.grad_weight.values(), kOutput);
    });
  }
}

}  // namespace
}  // namespace fusedsc::reference
