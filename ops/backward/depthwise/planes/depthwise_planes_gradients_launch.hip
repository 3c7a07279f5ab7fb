#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/planes/depthwise_planes_gradients_kernel.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
constexpr int kTaps = 9, kRows = kTaps + 1;
constexpr int kSumsBytes = kRows * 32 * 4;  ///< of a warp

constexpr int kMostWarps = 4;

struct Instance {
  DataType dtype;
  int columns, dilation;
  bool has_output;
  void (*run)(DepthwisePlanesGradientsParameters);
};

template <class T, int kColumns, int kDilation>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back({dtype, kColumns, kDilation, false,
                hopper_kernel<DepthwisePlanesGradients<T, kColumns, kDilation, false>, kMostWarps * 32, 4>});
  to.push_back({dtype, kColumns, kDilation, true,
                hopper_kernel<DepthwisePlanesGradients<T, kColumns, kDilation, true>, kMostWarps * 32, 4>});
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

const Instance* instance_of(const DepthwiseBackwardArguments& a, int columns) {
  if (!lanes_have(a.grad_y.sizes[3], columns)) return nullptr;
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.columns == columns && instance.dilation == a.window.dilation[0] &&
        instance.has_output == static_cast<bool>(a.gradient_prologue)) {
      return &instance;
    }
  }
  return nullptr;
}

std::string why_no_gradients(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_x || (!a.grad_weight && !a.grad_bias)) return "it computes the gradients of x and of the weight at once";
  if (a.prologue || a.sums || a.grad_add) return "of what may be fused it has the gradient prologue alone";
  if (a.window.kernel[0] != 3 || a.window.stride[0] != 1) return "it is for windows of 3 x 3 of stride 1";
  const std::string reason = why_no_planes(a.x, a.grad_y, a.window);
  if (!reason.empty()) return reason;
  const ConstTensorView grad_x = a.grad_x;
  const ConstTensorView& output = a.gradient_prologue ? a.gradient_prologue.output : a.grad_y;
  if (!output) return "the output is not given";
  return why_no_planes(grad_x, output, a.window);
}

float* take_partials(Arena& arena, const DepthwisePlanesGradientsParameters& p) {
  return arena.take<float>(std::int64_t{p.groups.splits} * kRows * p.channels);
}

const float* floats_of(const ConstChannelVector& vector) { return static_cast<const float*>(vector.data); }

/// A launch, worked out but for addresses; or why it does not fit.
struct GradientTiles {
  const Instance* instance = nullptr;
  DepthwisePlanesGradientsParameters planned;
  std::size_t memory = 0;
  std::string why_not;

  GradientTiles(const DepthwiseBackwardArguments& a, const Config& config)
      : instance(instance_of(a, config[Knob::columns])) {
    const DepthwisePlanesTiling tiling = planes_tiling_of(config);
    if (instance == nullptr || tiling.stages < 1 || tiling.warps < 1 || tiling.warps > kMostWarps) {
      why_not = "there is no kernel with " + tuning::printed(config);
      return;
    }
    static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.grad_y.sizes);
    const int element_bytes = static_cast<int>(size_of(a.x.dtype)), reach = instance->dilation;
    const int tensors = instance->has_output ? 2 : 1;  // that come beside x
    const DepthwisePlanesSource x{planned.input_width, planned.input_height},
        grad{planned.output_width * tensors, planned.output_height, 2 * reach};
    why_not = cut_planes(planned, element_bytes, x, grad, instance->columns, false, tiling);
    if (why_not.empty() && !are_whole_runs(planned, element_bytes)) why_not = "tiles are no whole runs of 16 bytes";
    if (!why_not.empty()) return;
    const bool is_whole = planned.strip_rows >= planned.input_height;
    planned.grad_pitch =
        planned.input_width *
        (is_whole ? planned.input_height : std::min(planned.input_height, planned.strip_rows + grad.spare));
    planned.stage_bytes = std::max(planned.stage_bytes, (kSumsBytes / planned.stages + 127) / 128 * 128);
    memory = static_cast<std::size_t>(planned.memory_bytes());
    if (memory > shared_memory_limit()) {
      why_not = "its tiles do not fit shared memory";
      return;
    }
    planned.groups =
        share_out_groups(planned, a.x.sizes[0], resident_blocks(instance->run, planned.warps * 32, memory));
  }
};

Configs configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  for (const int columns : {4, 2, 1}) {
    for (const int whole_bytes : {6600, 20000}) {
      for (const int tile_bytes : {6144, 12288}) {
        for (const int stages : {1, 2}) {
          for (const int warps : {2, kMostWarps}) {
            const Config config = config_of({whole_bytes, tile_bytes, stages, warps}, columns);
            if (GradientTiles(a, config).why_not.empty()) list.push_back(config);
          }
        }
      }
    }
  }
  return list;
}

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string reason = why_no_gradients(a);
  if (!reason.empty() || !configs(a).empty()) return reason;
  return GradientTiles(a, depthwise_planes_gradients_prior(a)).why_not;
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const GradientTiles tiles(a, config);
  if (!tiles.why_not.empty()) throw Unsupported(std::string(kName) + ": hopper_planes: " + tiles.why_not);
  const DepthwisePlanesGradientsParameters& planned = tiles.planned;
  Arena measured(nullptr);
  take_partials(measured, planned);
  return {measured.used(), [planned, kernel = tiles.instance->run, memory = tiles.memory](
                               const DepthwiseBackwardArguments& like, const Execution& execution) {
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

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_planes_gradients() {
  return {"hopper_planes", unsupported, configs, plan};
}

bool fits_depthwise_planes_gradients(const DepthwiseBackwardArguments& a, const Config& config) {
  return why_no_gradients(a).empty() && GradientTiles(a, config).why_not.empty();
}

}  // namespace fusedsc::gpu::hopper
#endif
