#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise_planes_launch.h"

#include <algorithm>
#include <limits>
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

constexpr int kMostWarps = 16;  ///< of a block, where its warps have the same channels

template <class T, int kKernel, int kStride, int kColumns>
FUSEDSC_KERNEL(kMostWarps * 32, 1)
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

bool has_seams(const DepthwiseBackwardArguments& a) {
  return a.prologue || a.gradient_prologue || a.sums || a.grad_add;
}

/// With at most so many columns of grad_y to a lane.
const Instance* choose(const DepthwiseBackwardArguments& a, int most_columns) {
  const int stride = static_cast<int>(a.window.stride[0]), columns = lane_columns_of(a.grad_y.sizes[3], most_columns);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == stride &&
        instance.columns == columns) {
      return &instance;
    }
  }
  return nullptr;
}

/// None where there is one row, which are the gradients.
float* take_partials(Arena& arena, const DepthwisePlanesWeightParameters& p, int taps) {
  const std::int64_t rows = rows_of_sums(p, p.groups);
  return rows > 1 ? arena.take<float>(rows * (taps + 1) * p.channels) : nullptr;
}

/// A launch, worked out but for addresses.
struct WeightTiles {
  const Instance* instance = nullptr;
  DepthwisePlanesWeightParameters parameters;
  double cost = std::numeric_limits<double>::infinity();

  WeightTiles() = default;
  WeightTiles(const DepthwiseBackwardArguments& a, const Instance& of, const DepthwisePlanesTiling& tiling)
      : instance(&of) {
    DepthwisePlanesWeightParameters& p = parameters;
    static_cast<DepthwisePlanesShape&>(p) = planes_shape(a.x.sizes, a.grad_y.sizes);
    const int bytes = static_cast<int>(size_of(a.x.dtype)), reach = of.kernel / 2, rows = of.kernel * of.kernel + 1;
    const DepthwisePlanesSource x{p.input_width, p.input_height}, grad{p.output_width, p.output_height, reach + 1};
    if (!cut_planes(p, bytes, x, grad, of.columns, false, tiling).empty()) return;
    const bool is_whole = p.strip_rows >= p.input_height;
    p.grad_pitch = grad.width * (is_whole ? grad.height : std::min(grad.height, p.strip_rows / of.stride + grad.spare));
    p.stage_bytes = std::max(p.stage_bytes, (plane_sums_bytes(p, rows) / p.stages + 127) / 128 * 128);
    cost = share_out_blocks(p, p.groups, a.x.sizes[0], of.columns, kMostWarps, [&](const DepthwisePlanesShape& trial) {
      return resident_blocks(of.weight, trial.warps * 32, static_cast<std::size_t>(trial.memory_bytes()));
    });
  }
};

/// Few columns to a lane make more warps with work.
WeightTiles choose_weight_tiles(const DepthwiseBackwardArguments& a) {
  WeightTiles best;
  const auto consider = [&](const DepthwisePlanesTiling& tiling) {
    for (int most = a.window.stride[0] == 2 ? 2 : 4; most >= 1; most /= 2) {
      const Instance* instance = choose(a, most);
      if (instance == nullptr || instance->columns < most) continue;
      if (const WeightTiles trial(a, *instance, tiling); trial.cost < best.cost) best = trial;
    }
  };
  consider({});
  // Planes that cannot be cut, whole: measured, worth it for many channels.
  if (best.instance == nullptr && a.x.sizes[1] >= 64) consider({.whole_bytes = 20000});
  return best;
}

}  // namespace

std::optional<BackwardPlan> plan_depthwise_planes_weight(const DepthwiseBackwardArguments& a) {
  // Measured: few elements are worth it where blocks have several images.
  const std::int64_t least = a.x.sizes[0] >= 8 ? 1 : least_elements_of_planes();
  if (has_seams(a) || a.window.dilation[0] != 1 || !why_no_planes(a.x, a.grad_y, a.window, least).empty()) return {};
  const WeightTiles tiles = choose_weight_tiles(a);
  if (tiles.instance == nullptr) return {};
  const DepthwisePlanesWeightParameters& planned = tiles.parameters;
  const int taps = tiles.instance->kernel * tiles.instance->kernel;
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  Arena measured(nullptr);
  take_partials(measured, planned, taps);
  return BackwardPlan{measured.used(), [planned, kernel = tiles.instance->weight, memory, taps](
                                           const DepthwiseBackwardArguments& like, const Execution& execution) {
                        Arena arena(execution.workspace);
                        DepthwisePlanesWeightParameters p = planned;
                        p.x = like.x.data;
                        p.grad_y = like.grad_y.data;
                        p.sums.partials = take_partials(arena, p, taps);
                        p.sums.grad_weight = like.grad_weight;
                        p.sums.grad_bias = like.grad_bias.data;
                        launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
                        if (p.sums.partials == nullptr) return;
                        SumPartialsParameters sum;
                        sum.partials = p.sums.partials;
                        sum.splits = rows_of_sums(p, p.groups);
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
  const ConstTensorView grad_x(a.grad_x);
  if (has_seams(a) || a.window.dilation[0] != 1 || !why_no_planes(grad_x, a.grad_y, a.window).empty()) return {};
  const Instance* instance = choose(a, a.window.stride[0] == 2 ? 2 : 4);
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
