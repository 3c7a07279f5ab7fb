#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <vector>

#include "fusedsc/backward/depthwise_planes_gradients_kernel.h"
#include "fusedsc/backward/depthwise_planes_launch.h"
#include "fusedsc/common/gpu/depthwise_planes_plan.h"
#include "fusedsc/common/gpu/hopper_host.h"
#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
constexpr int kTaps = 9, kRows = kTaps + 1;
constexpr int kSumsBytes = kRows * 32 * 4;  ///< of a warp

/// What measured best on an H200 (docs/performance_gpu_depthwise.md): many warps, that wait each for its one tile.
constexpr DepthwisePlanesTiling kTiling{.whole_bytes = 20000, .tile_bytes = 12288, .stages = 1};

template <class T, int kColumns, int kDilation, bool kHasOutput>
FUSEDSC_KERNEL(128, 4)
planes_gradients_kernel(DepthwisePlanesGradientsParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwisePlanesGradients<T, kColumns, kDilation, kHasOutput>::run(p);
#endif
}

struct Instance {
  DataType dtype;
  int columns, dilation;
  bool has_output;
  void (*run)(DepthwisePlanesGradientsParameters);
};

template <class T, int kColumns, int kDilation>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back({dtype, kColumns, kDilation, false, planes_gradients_kernel<T, kColumns, kDilation, false>});
  to.push_back({dtype, kColumns, kDilation, true, planes_gradients_kernel<T, kColumns, kDilation, true>});
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  append<T, 1, 1>(to, dtype);
  append<T, 2, 1>(to, dtype);
  append<T, 4, 1>(to, dtype);
  append<T, 1, 2>(to, dtype);
  append<T, 2, 2>(to, dtype);
  append<T, 4, 2>(to, dtype);
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

const Instance* choose(const DepthwiseBackwardArguments& a) {
  if (!a.grad_x || (!a.grad_weight && !a.grad_bias) || a.prologue || a.sums || a.grad_add) return nullptr;
  if (a.window.kernel[0] != 3 || a.window.stride[0] != 1) return nullptr;
  if (!why_no_planes(a.x, a.grad_y, a.window).empty()) return nullptr;
  const ConstTensorView grad_x = a.grad_x;
  const ConstTensorView& output = a.gradient_prologue ? a.gradient_prologue.output : a.grad_y;
  if (!output || !why_no_planes(grad_x, output, a.window).empty()) return nullptr;
  const int columns = lane_columns_of(a.grad_y.sizes[3], 4);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.columns == columns && instance.dilation == a.window.dilation[0] &&
        instance.has_output == static_cast<bool>(a.gradient_prologue)) {
      return &instance;
    }
  }
  return nullptr;
}

float* take_partials(Arena& arena, const DepthwisePlanesGradientsParameters& p) {
  return arena.take<float>(std::int64_t{p.groups.splits} * kRows * p.channels);
}

const float* floats_of(const ConstChannelVector& vector) { return static_cast<const float*>(vector.data); }

}  // namespace

std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_planes_gradients(const DepthwiseBackwardArguments& a) {
  const Instance* instance = choose(a);
  if (instance == nullptr) return {};
  DepthwisePlanesGradientsParameters planned;
  static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.grad_y.sizes);
  const int element_bytes = static_cast<int>(size_of(a.x.dtype)), reach = instance->dilation;
  const int tensors = instance->has_output ? 2 : 1;  // that come beside x
  const DepthwisePlanesSource x{planned.input_width, planned.input_height},
      grad{planned.output_width * tensors, planned.output_height, 2 * reach};
  if (!cut_planes(planned, element_bytes, x, grad, instance->columns, false, kTiling).empty()) return {};
  if (!are_whole_runs(planned, element_bytes)) return {};
  const bool is_whole = planned.strip_rows >= planned.input_height;
  planned.grad_pitch =
      planned.input_width *
      (is_whole ? planned.input_height : std::min(planned.input_height, planned.strip_rows + grad.spare));
  planned.stage_bytes = std::max(planned.stage_bytes, (kSumsBytes / planned.stages + 127) / 128 * 128);
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  if (memory > kBlockMemoryLimit) return {};
  planned.groups = share_out_groups(planned, a.x.sizes[0], resident_blocks(instance->run, planned.warps * 32, memory));
  Arena measured(nullptr);
  take_partials(measured, planned);
  return Plan<DepthwiseBackwardArguments>{
      measured.used(),
      [planned, kernel = instance->run, memory](const DepthwiseBackwardArguments& like, const Execution& execution) {
        Arena arena(execution.workspace);
        DepthwisePlanesGradientsParameters p = planned;
        p.x = like.x.data;
        p.grad_y = like.grad_y.data;
        p.output = like.gradient_prologue.output.data;
        p.grad_scale = floats_of(like.gradient_prologue.grad_scale);
        p.output_scale = floats_of(like.gradient_prologue.output_scale);
        p.offset = floats_of(like.gradient_prologue.offset);
        p.weight = like.weight;
        p.grad_x = like.grad_x.data;
        p.partials = take_partials(arena, p);
        launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
        SumPartialsParameters sum;
        sum.partials = p.partials;
        sum.splits = p.groups.splits;
        sum.taps = kTaps;
        sum.kernel_width = 3;
        sum.rows = kRows;
        sum.channels = p.channels;
        sum.weight = like.grad_weight;
        sum.bias = like.grad_bias.data;
        launch_sum_partials(kName, like.x.dtype, sum, execution.stream);
      }};
}

}  // namespace fusedsc::gpu::hopper
#endif
