#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise_planes_launch.h"

#include <algorithm>
#include <vector>

#include "fusedsc/common/gpu/depthwise_planes_plan.h"
#include "fusedsc/common/gpu/hopper_host.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/forward/depthwise_planes_kernel.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
constexpr int kMomentsBytes = 3 * 32 * 4;  ///< of a warp

template <class T, int kKernel, int kStride, int kColumns, int kDilation, bool kStatistics>
FUSEDSC_KERNEL(128, 4)
planes_kernel(DepthwisePlanesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwisePlanes<T, kKernel, kStride, kColumns, kDilation, kStatistics>::run(p);
#endif
}

using Kernel = void (*)(DepthwisePlanesParameters);

struct Instance {
  DataType dtype;
  int kernel, stride, columns, dilation;
  Kernel plain, statistics;
};

template <class T, int kKernel, int kStride, int kColumns, int kDilation = 1>
constexpr Instance instance(DataType dtype) {
  return {dtype,
          kKernel,
          kStride,
          kColumns,
          kDilation,
          planes_kernel<T, kKernel, kStride, kColumns, kDilation, false>,
          planes_kernel<T, kKernel, kStride, kColumns, kDilation, true>};
}

template <class T, int kKernel>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back(instance<T, kKernel, 1, 1>(dtype));
  to.push_back(instance<T, kKernel, 1, 2>(dtype));
  to.push_back(instance<T, kKernel, 1, 4>(dtype));
  to.push_back(instance<T, kKernel, 2, 1>(dtype));
  to.push_back(instance<T, kKernel, 2, 2>(dtype));
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  append<T, 3>(to, dtype);
  append<T, 5>(to, dtype);
  to.push_back(instance<T, 3, 1, 1, 2>(dtype));
  to.push_back(instance<T, 3, 1, 2, 2>(dtype));
  to.push_back(instance<T, 3, 1, 4, 2>(dtype));
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_all<float>(list, DataType::float32);
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    return list;
  }();
  return all;
}

const Instance* choose(const DepthwiseArguments& a) {
  if (a.prologue || a.epilogue) return nullptr;
  // Measured: small planes of 16 bits are worth it earlier.
  const bool is_small = a.y.sizes[3] <= 8 && !a.statistics && size_of(a.x.dtype) == 2;
  const std::int64_t least = least_elements_of_planes() / (is_small ? 2 : 1);
  if (!why_no_planes(a.x, ConstTensorView(a.y), a.window, least).empty()) return nullptr;
  const int stride = static_cast<int>(a.window.stride[0]);
  const int columns = lane_columns_of(a.y.sizes[3], stride == 2 ? 2 : 4);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == stride &&
        instance.columns == columns && instance.dilation == a.window.dilation[0]) {
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
  const bool is_small = width <= 8 && a.x.sizes[0] <= 32 && !a.statistics && size_of(a.x.dtype) == 2;
  if (is_small && !is_large) return {.tile_bytes = 1536, .stages = 2, .warps = 2};
  if (width <= 8) return {.tile_bytes = is_large ? 1536 : 3072, .stages = 2};
  if (width <= 16) return {.tile_bytes = 3072, .stages = 3};
  if (width <= 32)
    return is_large ? DepthwisePlanesTiling{.tile_bytes = 3072, .stages = 3}
                    : DepthwisePlanesTiling{.whole_bytes = 13312};
  return {.stages = 3};
}

float* take_partials(Arena& arena, const DepthwisePlanesParameters& p) {
  return arena.take<float>(std::int64_t{3} * p.groups.splits * p.channels);
}

}  // namespace

std::optional<Plan<DepthwiseArguments>> plan_depthwise_planes(const DepthwiseArguments& a) {
  const Instance* instance = choose(a);
  if (instance == nullptr) return {};
  const Kernel kernel = a.statistics ? instance->statistics : instance->plain;
  DepthwisePlanesParameters planned;
  static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.y.sizes);
  const DepthwisePlanesSource x{planned.input_width, planned.input_height,
                                instance->kernel / 2 * instance->dilation * 2};
  const int element_bytes = static_cast<int>(size_of(a.x.dtype));
  if (!cut_planes(planned, element_bytes, x, {}, instance->columns, !a.statistics, choose_tiling(a)).empty()) return {};
  if (a.statistics) {
    if (!are_whole_runs(planned, element_bytes)) return {};
    planned.stage_bytes = std::max(planned.stage_bytes, kMomentsBytes);
  }
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  if (memory > kBlockMemoryLimit) return {};
  const int resident = resident_blocks(kernel, planned.warps * 32, memory);
  if (a.statistics) planned.groups = share_out_groups(planned, a.x.sizes[0], resident);
  else planned.parts = share_out_parts(planned, instance->stride, instance->kernel / 2 * instance->dilation, resident);
  Arena measured(nullptr);
  if (a.statistics) take_partials(measured, planned);
  return Plan<DepthwiseArguments>{
      measured.used(), [planned, kernel, memory](const DepthwiseArguments& like, const Execution& execution) {
        DepthwisePlanesParameters p = planned;
        p.x = like.x.data;
        p.weight = like.weight;
        p.bias = like.bias.data;
        p.y = like.y.data;
        Arena arena(execution.workspace);
        if (like.statistics) p.partials = take_partials(arena, p);
        launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
        if (!like.statistics) return;
        launch_merge_moments("depthwise_conv2d: statistics", DataType::float32, p.partials, p.groups.splits,
                             like.statistics, like.y.sizes[0] * like.y.sizes[2] * like.y.sizes[3], execution.stream);
      }};
}

}  // namespace fusedsc::gpu::hopper
#endif
