/// "gpu_fragments" on 16-bit tensors with any even number of channels, by force: every tile, several of them for each
/// warp, with anything fused; whole tensors, whose rows are copied as they lie, and some channels of larger ones, in
/// pieces of 4, 8 and 16 bytes; and that nothing of one position reaches another.
#include <cmath>

#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "gpu/forced.h"
#include "gpu/pointwise_fragments_cases.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

using Forward = ForwardCase<PointwiseGeometry>;
using Backward = BackwardCase<PointwiseGeometry>;

class PointwisePackedGpu : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (size_of(GetParam().dtype) != 2) GTEST_SKIP() << "for 16-bit types";
  }

  /// Less than a chunk of k, several and a part; less than a tile of outputs, one, several; groups; few positions, and
  /// more than a warp's tiles.
  const PointwiseGeometry geometries[8] = {{{2, 58, 31, 41}, 58}, {{1, 116, 17, 23}, 116}, {{3, 6, 5, 7}, 10},
                                           {{1, 20, 1, 1}, 180},  {{2, 2, 9, 31}, 58},     {{1, 100, 9, 11}, 36},
                                           {{1, 92, 3, 5}, 40},   {{2, 60, 7, 9}, 36, 3}};
  static constexpr Memory kMemories[] = {Memory::channels_last, Memory::some_channels};

  /// use(config) of each, forced.
  template <class Arguments, class Use>
  void for_each_tile(const char* role, std::span<const tuning::Kernel<Arguments>> kernels, const Arguments& arguments,
                     const Use& use) {
    const auto found = able(kernels, arguments, {"gpu_fragments"});
    if (found.empty()) return;  // it does not fit the shared memory that the host executor plays
    for (const tuning::Config& config : found[0].configs(arguments)) {
      verify_by(role, "gpu_fragments/" + tuning::printed(config), use);
      ++tiles_;
      if (HasFailure()) return;
    }
  }

  int tiles_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwisePackedGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwisePackedGpu, Forward) {
  for (const PointwiseGeometry& geometry : geometries) {
    for (const Memory memory : kMemories) {
      for (const ForwardFusion& fusion : forward_fusions({})) {
        const Forward problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        ForwardTensors<PointwiseGeometry> tensors(problem);
        for_each_tile("pointwise_conv2d.forward", gpu::pointwise_gpu_kernels(), tensors.arguments(problem),
                      [&] { verify_forward(problem); });
      }
    }
  }
  EXPECT_GT(tiles_, 150);
}

TEST_P(PointwisePackedGpu, Backward) {
  for (const PointwiseGeometry& geometry : geometries) {
    for (const Memory memory : kMemories) {
      for (const bool is_weight : {false, true}) {
        for (const Activation activation : {Activation::identity, Activation::relu6, Activation::silu}) {
          const Backward problem{GetParam().dtype, geometry, backward_fusion(activation, is_weight),
                                 Memories::all(memory)};
          SCOPED_TRACE(testing::PrintToString(problem));
          BackwardTensors<PointwiseGeometry> tensors(problem);
          for_each_tile("pointwise_conv2d.backward", pointwise_backward_kernels(), tensors.arguments(problem),
                        [&] { verify_backward(problem); });
        }
      }
    }
  }
  EXPECT_GT(tiles_, 150);
}

/// A NaN in one position makes that one NaN, and no other: not its neighbours in memory, not those of a tile; and of
/// the weight's gradient one channel.
TEST_P(PointwisePackedGpu, NotANumber) {
  const PointwiseGeometry geometry{{1, 58, 9, 31}, 38};
  constexpr std::int64_t kRow = 4, kColumn = 12;
  const auto with_one = [](Array x) {
    for (std::int64_t c = 0; c < x.sizes[1]; ++c) x.at(0, c, kRow, kColumn).value = NAN;
    return x;
  };
  for (const bool has_fusion : {false, true}) {
    const Activation activation = has_fusion ? Activation::relu : Activation::identity;
    const Forward forward{GetParam().dtype,
                          geometry,
                          {.prologue = has_fusion, .activation = activation},
                          Memories::all(Memory::channels_last)};
    ForwardTensors<PointwiseGeometry> tensors(forward);
    tensors.x.fill(with_one(tensors.x.values()));
    const auto arguments = tensors.arguments(forward);
    for_each_tile("pointwise_conv2d.forward", gpu::pointwise_gpu_kernels(), arguments, [&] {
      tensors.y.wipe();
      run(PointwiseGeometry::kForward, arguments, 1, 0xff);
      expect_one_position(tensors.y.values(), kRow, kColumn);
    });

    const Backward backward{
        GetParam().dtype,
        geometry,
        {.prologue = has_fusion, .gradient_prologue = has_fusion, .grad_weight = false, .grad_bias = false},
        Memories::all(Memory::channels_last)};
    BackwardTensors<PointwiseGeometry> gradients(backward);
    gradients.grad_y.fill(with_one(gradients.grad_y.values()));
    const auto of_gradient = gradients.arguments(backward);
    for_each_tile("pointwise_conv2d.backward", pointwise_backward_kernels(), of_gradient, [&] {
      gradients.grad_x.wipe();
      run(PointwiseGeometry::kBackward, of_gradient, 1, 0xff);
      expect_one_position(gradients.grad_x.values(), kRow, kColumn);
    });

    // Of the weight's gradient those of the channel that has it.
    const Backward weight{GetParam().dtype,
                          geometry,
                          {.prologue = has_fusion, .gradient_prologue = has_fusion, .grad_x = false},
                          Memories::all(Memory::channels_last)};
    BackwardTensors<PointwiseGeometry> of_positions(weight);
    Array x = of_positions.x.values();
    x.at(0, 33, kRow, kColumn).value = NAN;
    of_positions.x.fill(x);
    const auto of_weight = of_positions.arguments(weight);
    for_each_tile("pointwise_conv2d.backward", pointwise_backward_kernels(), of_weight, [&] {
      of_positions.grad_weight.wipe();
      run(PointwiseGeometry::kBackward, of_weight, 1, 0xff);
      expect_one_channel(of_positions.grad_weight.values(), 33);
    });
  }
}

}  // namespace
}  // namespace fusedsc::reference
