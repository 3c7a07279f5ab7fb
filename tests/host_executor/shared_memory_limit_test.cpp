/// Kernels for any GPU on one whose blocks have less shared memory than others': what is chosen fits, and every config
/// that is listed does. The host executor refuses a block that asks for more.
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/sparse/sparse_kernels.h"
#include "gpu/forced.h"
#include "host_executor/executor.h"
#include "ops/backward_case.h"
#include "ops/depthwise_cases.h"
#include "ops/forward_case.h"
#include "ops/pointwise_cases.h"
#include "ops/sparse_cases.h"

namespace fusedsc::reference {
namespace {

constexpr std::size_t kLittle = std::size_t{40} * 1024;
const Names kForAnyGpu{"gpu_tiles", "gpu_fragments", "gpu_windows", "gpu_lists"};

class SharedMemoryLimit : public OnGpu {
 protected:
  void TearDown() override {
    gpu::executor::set_shared_memory_limit(0);
    OnGpu::TearDown();
  }

  /// With little shared memory all that is listed runs, and what a kernel takes by itself; with more there is more.
  template <class Arguments, class Verify>
  void verify_listed(const char* role, std::span<const tuning::Kernel<Arguments>> kernels, const Arguments& arguments,
                     const Verify& verify) {
    const auto listed = [&] {
      std::vector<std::string> all;
      for (const auto& kernel : able(kernels, arguments, kForAnyGpu)) {
        for (const tuning::Config& config : kernel.configs(arguments))
          all.push_back(kernel.name + ('/' + tuning::printed(config)));
      }
      return all;
    };
    gpu::executor::set_shared_memory_limit(kLittle);
    const std::vector<std::string> few = listed();
    for (const auto& kernel : able(kernels, arguments, kForAnyGpu)) {
      if (!kernel.configs(arguments).empty()) verify_by(role, kernel.name, verify);
    }
    runs_ += static_cast<int>(few.size());
    for (std::size_t i = 0; i < few.size() && !HasFailure(); i += 1 + few.size() / 12) verify_by(role, few[i], verify);
    gpu::executor::set_shared_memory_limit(0);
    left_out_ += static_cast<int>(listed().size() - few.size());
  }

  int runs_ = 0, left_out_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Targets, SharedMemoryLimit, testing::ValuesIn(gpu_targets()),
                         testing::PrintToStringParamName());

TEST(SharedMemoryLimitOfHost, MoreIsAnError) {
  gpu::executor::set_wave_size(32);
  gpu::executor::set_shared_memory_limit(kLittle);
  EXPECT_NO_THROW(gpu::executor::run(1, 32, kLittle, [] {}));
  EXPECT_THROW(gpu::executor::run(1, 32, kLittle + 1, [] {}), std::runtime_error);
  gpu::executor::set_shared_memory_limit(0);
  EXPECT_NO_THROW(gpu::executor::run(1, 32, kLittle + 1, [] {}));
}

TEST_P(SharedMemoryLimit, Pointwise) {
  for (const Memory memory : {Memory::contiguous, Memory::channels_last}) {
    for (const PointwiseGeometry& geometry : {PointwiseGeometry{{3, 176, 4, 11}, 136, 1}, {{2, 90, 5, 7}, 58, 1}}) {
      const ForwardCase<PointwiseGeometry> forward{
          GetParam().dtype, geometry, {.prologue = true, .activation = Activation::relu6}, Memories::all(memory)};
      ForwardTensors<PointwiseGeometry> tensors(forward);
      verify_listed("pointwise_conv2d.forward", gpu::pointwise_gpu_kernels(), tensors.arguments(forward),
                    [&] { verify_forward(forward); });
      const BackwardCase<PointwiseGeometry> backward{GetParam().dtype,
                                                     geometry,
                                                     {.grad_x = true, .grad_weight = false, .grad_bias = false},
                                                     Memories::all(memory)};
      BackwardTensors<PointwiseGeometry> gradients(backward);
      verify_listed("pointwise_conv2d.backward", pointwise_backward_kernels(), gradients.arguments(backward),
                    [&] { verify_backward(backward); });
    }
  }
  EXPECT_GT(runs_, 0);
  const bool has_fragments = GetParam().wave_size == 32 && size_of(GetParam().dtype) == 2;  // the largest in any build
  if (has_fragments) EXPECT_GT(left_out_, 0) << "no config of these problems takes more than the little";
}

TEST_P(SharedMemoryLimit, DepthwiseWindows) {
  const ForwardCase<DepthwiseGeometry> problem{
      GetParam().dtype, {{2, 40, 30, 30}, centered(11)}, {.bias = true}, Memories::all(Memory::channels_last)};
  gpu::executor::set_shared_memory_limit(kLittle);
  verify_by("depthwise_conv2d.forward", "gpu_windows", [&] { verify_forward(problem); });
}

TEST_P(SharedMemoryLimit, Sparse) {
  const SparseCase problem{
      .dtype = GetParam().dtype, .x = {2, 300, 9, 9}, .outputs = 130, .window = {{3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}}};
  SparseTensors tensors(problem);
  const SparseArguments arguments = tensors.arguments(problem);
  const std::vector<tuning::Kernel<SparseArguments>> kernels{gpu::sparse_lists()};
  gpu::executor::set_shared_memory_limit(kLittle);
  for (const std::string& choice : some_choices(kernels[0], arguments, 0, 8)) {
    verify_by("sparse_conv2d.forward", choice, [&] {
      verify(kSparse, arguments, {{"y", tensors.y, tensors.expected}});
    });
  }
}

}  // namespace
}  // namespace fusedsc::reference
