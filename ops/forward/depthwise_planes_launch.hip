#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise_planes_launch.h"

#include <vector>

#include "fusedsc/common/gpu/depthwise_planes_plan.h"
#include "fusedsc/common/gpu/hopper_host.h"
#include "fusedsc/forward/depthwise_planes_kernel.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";

template <class T, int kKernel, int kStride, int kColumns>
FUSEDSC_KERNEL(128, 4)
planes_kernel(DepthwisePlanesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwisePlanes<T, kKernel, kStride, kColumns>::run(p);
#endif
}

struct Instance {
  DataType dtype;
  int kernel, stride, columns;
  void (*run)(DepthwisePlanesParameters);
};

template <class T, int kKernel>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back({dtype, kKernel, 1, 1, planes_kernel<T, kKernel, 1, 1>});
  to.push_back({dtype, kKernel, 1, 2, planes_kernel<T, kKernel, 1, 2>});
  to.push_back({dtype, kKernel, 1, 4, planes_kernel<T, kKernel, 1, 4>});
  to.push_back({dtype, kKernel, 2, 1, planes_kernel<T, kKernel, 2, 1>});
  to.push_back({dtype, kKernel, 2, 2, planes_kernel<T, kKernel, 2, 2>});
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append<float, 3>(list, DataType::float32);
    append<float, 5>(list, DataType::float32);
    append<Float16, 3>(list, DataType::float16);
    append<Float16, 5>(list, DataType::float16);
    append<BFloat16, 3>(list, DataType::bfloat16);
    append<BFloat16, 5>(list, DataType::bfloat16);
    return list;
  }();
  return all;
}

const Instance* choose(const DepthwiseArguments& a) {
  if (a.prologue || a.epilogue || a.statistics) return nullptr;
  if (!why_no_planes(a.x, ConstTensorView(a.y), a.window).empty()) return nullptr;
  const int stride = static_cast<int>(a.window.stride[0]);
  const int columns = lane_columns_of(a.y.sizes[3], stride == 2 ? 2 : 4);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == stride &&
        instance.columns == columns) {
      return &instance;
    }
  }
  return nullptr;
}

/// What measured best on an H200 (docs/performance_gpu_depthwise.md).
DepthwisePlanesTiling choose_tiling(const DepthwiseArguments& a) {
  const std::int64_t width = a.y.sizes[3];
  const bool is_large = a.window.kernel[0] == 5;
  if (a.window.stride[0] == 2) return {.stages = 2};
  if (width <= 8) return {.tile_bytes = is_large ? 1536 : 3072, .stages = 2};
  if (width <= 16) return {.tile_bytes = 3072, .stages = 3};
  if (width <= 32)
    return is_large ? DepthwisePlanesTiling{.tile_bytes = 3072, .stages = 3}
                    : DepthwisePlanesTiling{.whole_bytes = 13312};
  return {.stages = 3};
}

}  // namespace

std::optional<Plan<DepthwiseArguments>> plan_depthwise_planes(const DepthwiseArguments& a) {
  const Instance* instance = choose(a);
  if (instance == nullptr) return {};
  DepthwisePlanesParameters planned;
  static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.y.sizes);
  const DepthwisePlanesSource x{planned.input_width, planned.input_height, instance->kernel / 2 * 2};
  if (!cut_planes(planned, static_cast<int>(size_of(a.x.dtype)), x, {}, instance->columns, true, choose_tiling(a))
           .empty())
    return {};
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  if (memory > kBlockMemoryLimit) return {};
  share_out(planned, resident_blocks(instance->run, planned.warps * 32, memory));
  return Plan<DepthwiseArguments>{
      0, [planned, kernel = instance->run, memory](const DepthwiseArguments& like, const Execution& execution) {
        DepthwisePlanesParameters p = planned;
        p.x = like.x.data;
        p.weight = like.weight;
        p.bias = like.bias.data;
        p.y = like.y.data;
        launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
      }};
}

}  // namespace fusedsc::gpu::hopper
#endif
