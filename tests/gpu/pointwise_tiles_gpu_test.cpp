/// Every tile of the pointwise kernels for any GPU, by force: of runs, of fragments and of elements, with fusion and
/// without; several tiles, and steps of k that are not whole.
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "gpu/forced.h"
#include "ops/backward_case.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"

namespace fusedsc::reference {
namespace {

class PointwiseTilesGpu : public OnGpu {
 protected:
  static constexpr Memory kMemories[] = {Memory::contiguous, Memory::channels_last};

  static std::vector<PointwiseGeometry> geometries() {
    std::vector<PointwiseGeometry> all = {{{3, 88, 4, 11}, 272, 2}, {{3, 74, 5, 7}, 138, 2}};
    if (size_of(GetParam().dtype) == 2) all.push_back({{3, 80, 4, 11}, 272, 2});  // whole runs of 16 bytes
    if (GetParam().dtype != DataType::float32 || GetParam().wave_size != 32) return all;
    for (PointwiseGeometry geometry : std::vector(all)) {  // on what plays an NVIDIA GPU
      geometry.tf32 = true;
      all.push_back(geometry);
    }
    return all;
  }

  /// Each config of "gpu_tiles" and "gpu_fragments" in `kernels` for a problem, by force.
  template <class Arguments, class Verify>
  void verify_tiles(const char* role, std::span<const tuning::Kernel<Arguments>> kernels, const Arguments& arguments,
                    const Verify& verify) {
    for (const auto& kernel : able(kernels, arguments, {"gpu_tiles", "gpu_fragments"})) {
      const tuning::Configs configs = kernel.configs(arguments);
      for (const tuning::Config& config : configs) {
        const std::vector<long> before = gpu_matrix_instructions(GetParam().dtype);
        verify_by(role, kernel.name + ('/' + tuning::printed(config)), verify);
        if (std::string_view(kernel.name) == "gpu_tiles") expect_more(before);
        ++tiles_;
        if (HasFailure()) return;
      }
    }
  }

  /// Each of the matrix instructions for this type was executed since then.
  static void expect_more(const std::vector<long>& before) {
    const std::vector<long> after = gpu_matrix_instructions(GetParam().dtype);
    for (std::size_t i = 0; i < after.size(); ++i) EXPECT_GT(after[i], before[i]) << "instruction " << i;
  }

  /// As many as fit the shared memory of the smallest GPU.
  void expect_tiles(int of_half, int of_float, int of_tf32, int of_double) const {
    const bool has_tf32 = geometries().size() > 2;
    const auto size = size_of(GetParam().dtype);
    EXPECT_GE(tiles_, size == 2 ? of_half : size == 8 ? of_double : of_float + (has_tf32 ? of_tf32 : 0));
  }

  int tiles_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Targets, PointwiseTilesGpu, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST_P(PointwiseTilesGpu, Forward) {
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const Memory memory : kMemories) {
      for (const ForwardFusion& fusion :
           {ForwardFusion{.bias = true}, ForwardFusion{.prologue = true, .activation = Activation::relu6}}) {
        const ForwardCase<PointwiseGeometry> problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
        SCOPED_TRACE(testing::PrintToString(problem));
        ForwardTensors<PointwiseGeometry> tensors(problem);
        verify_tiles("pointwise_conv2d.forward", gpu::pointwise_gpu_kernels(), tensors.arguments(problem),
                     [&] { verify_forward(problem); });
      }
    }
  }
  expect_tiles(24, 26, 26, 8);
}

TEST_P(PointwiseTilesGpu, Backward) {
  for (const PointwiseGeometry& geometry : geometries()) {
    for (const Memory memory : kMemories) {
      for (const bool has_fusion : {false, true}) {
        for (const bool is_weight : {false, true}) {
          const BackwardFusion fusion{.prologue = has_fusion,
                                      .gradient_prologue = has_fusion,
                                      .grad_x = !is_weight,
                                      .grad_weight = is_weight,
                                      .grad_bias = is_weight};
          const BackwardCase<PointwiseGeometry> problem{GetParam().dtype, geometry, fusion, Memories::all(memory)};
          SCOPED_TRACE(testing::PrintToString(problem));
          BackwardTensors<PointwiseGeometry> tensors(problem);
          verify_tiles("pointwise_conv2d.backward", pointwise_backward_kernels(), tensors.arguments(problem),
                       [&] { verify_backward(problem); });
        }
      }
    }
  }
  expect_tiles(32, 42, 40, 16);
}

}  // namespace
}  // namespace fusedsc::reference
