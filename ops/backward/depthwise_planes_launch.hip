#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise_planes_launch.h"

#include <algorithm>
#include <vector>

#include "fusedsc/backward/depthwise_planes_input_kernel.h"
#include "fusedsc/backward/depthwise_planes_weight_kernel.h"
#include "fusedsc/common/gpu/depthwise_planes_plan.h"
#include "fusedsc/common/gpu/hopper_host.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
using BackwardPlan = Plan<DepthwiseBackwardArguments>;

template <class T, int kKernel, int kStride, int kColumns>
FUSEDSC_KERNEL(128, 4)
planes_weight_kernel(DepthwisePlanesWeightParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwisePlanesWeight<T, kKernel, kStride, kColumns>::run(p);
#endif
}

template <class T, int kKernel, int kColumns>
FUSEDSC_KERNEL(128, 4)
planes_input_kernel(DepthwisePlanesInputParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)
  DepthwisePlanesInput<T, kKernel, kColumns>::run(p);
#endif
}

struct Instance {
  DataType dtype;
  int kernel, stride, columns;
  void (*weight)(DepthwisePlanesWeightParameters);
  void (*input)(DepthwisePlanesInputParameters) = nullptr;
};

template <class T, int kKernel>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back({dtype, kKernel, 1, 1, planes_weight_kernel<T, kKernel, 1, 1>});
  to.push_back({dtype, kKernel, 1, 2, planes_weight_kernel<T, kKernel, 1, 2>});
  to.push_back({dtype, kKernel, 1, 4, planes_weight_kernel<T, kKernel, 1, 4>});
  to.push_back({dtype, kKernel, 2, 1, planes_weight_kernel<T, kKernel, 2, 1>, planes_input_kernel<T, kKernel, 1>});
  to.push_back({dtype, kKernel, 2, 2, planes_weight_kernel<T, kKernel, 2, 2>, planes_input_kernel<T, kKernel, 2>});
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

const Instance* choose(const DepthwiseBackwardArguments& a, const ConstTensorView& input) {
  if (a.prologue || a.gradient_prologue || a.sums || a.grad_add) return nullptr;
  if (a.window.dilation[0] != 1 || !why_no_planes(input, a.grad_y, a.window).empty()) return nullptr;
  const int stride = static_cast<int>(a.window.stride[0]);
  const int columns = lane_columns_of(a.grad_y.sizes[3], stride == 2 ? 2 : 4);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == stride &&
        instance.columns == columns) {
      return &instance;
    }
  }
  return nullptr;
}

float* take_partials(Arena& arena, const DepthwisePlanesWeightParameters& p, int taps) {
  return arena.take<float>(std::int64_t{p.groups.splits} * (taps + 1) * p.channels);
}

}  // namespace

std::optional<BackwardPlan> plan_depthwise_planes_weight(const DepthwiseBackwardArguments& a) {
  const Instance* instance = choose(a, a.x);
  if (instance == nullptr) return {};
  DepthwisePlanesWeightParameters planned;
  static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.grad_y.sizes);
  const int bytes = static_cast<int>(size_of(a.x.dtype)), reach = instance->kernel / 2,
            taps = instance->kernel * instance->kernel;
  const DepthwisePlanesSource x{planned.input_width, planned.input_height},
      grad{planned.output_width, planned.output_height, reach + 1};
  if (!cut_planes(planned, bytes, x, grad, instance->columns, false, {}).empty()) return {};
  const bool is_whole = planned.strip_rows >= planned.input_height;
  planned.grad_pitch =
      grad.width * (is_whole ? grad.height : std::min(grad.height, planned.strip_rows / instance->stride + grad.spare));
  const int sums_bytes = 32 * (taps + 1) * 4;
  planned.stage_bytes = std::max(planned.stage_bytes, (sums_bytes / planned.stages + 127) / 128 * 128);
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  if (memory > kBlockMemoryLimit) return {};
  planned.groups =
      share_out_groups(planned, a.x.sizes[0], resident_blocks(instance->weight, planned.warps * 32, memory));
  Arena measured(nullptr);
  take_partials(measured, planned, taps);
  return BackwardPlan{measured.used(), [planned, kernel = instance->weight, memory, taps](
                                           const DepthwiseBackwardArguments& like, const Execution& execution) {
                        Arena arena(execution.workspace);
                        DepthwisePlanesWeightParameters p = planned;
                        p.x = like.x.data;
                        p.grad_y = like.grad_y.data;
                        p.partials = take_partials(arena, p, taps);
                        launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
                        SumPartialsParameters sum;
                        sum.partials = p.partials;
                        sum.splits = p.groups.splits;
                        sum.taps = taps;
                        sum.kernel_width = static_cast<int>(like.window.kernel[1]);
                        sum.rows = taps + 1;
                        sum.channels = p.channels;
                        sum.weight = like.grad_weight;
                        sum.bias = like.grad_bias.data;
                        launch_sum_partials(kName, like.x.dtype, sum, execution.stream);
                      }};
}

std::optional<BackwardPlan> plan_depthwise_planes_input(const DepthwiseBackwardArguments& a) {
  const Instance* instance = choose(a, ConstTensorView(a.grad_x));
  if (instance == nullptr || instance->input == nullptr) return {};
  DepthwisePlanesInputParameters planned;
  static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.grad_y.sizes);
  const DepthwisePlanesSource grad{planned.output_width, planned.output_height};
  if (!cut_planes(planned, static_cast<int>(size_of(a.x.dtype)), grad, {}, instance->columns, true, {.stages = 3})
           .empty())
    return {};
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  if (memory > kBlockMemoryLimit) return {};
  share_out(planned, resident_blocks(instance->input, planned.warps * 32, memory));
  return BackwardPlan{0, [planned, kernel = instance->input, memory](const DepthwiseBackwardArguments& like,
                                                                     const Execution& execution) {
                        DepthwisePlanesInputParameters p = planned;
                        p.grad_y = like.grad_y.data;
                        p.weight = like.weight;
                        p.grad_x = like.grad_x.data;
                        launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
                      }};
}

}  // namespace fusedsc::gpu::hopper
#endif
