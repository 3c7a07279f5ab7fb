#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/planes/depthwise_planes_input_kernel.h"
#include "fusedsc/backward/depthwise/planes/depthwise_planes_weight_kernel.h"
#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
using BackwardPlan = Plan<DepthwiseBackwardArguments>;

constexpr int kMostWarps = 16;      ///< of a block, where its warps have the same channels
constexpr int kMostInputWarps = 4;  ///< of a block of the input gradient

struct Instance {
  DataType dtype;
  int kernel, stride, columns;
  void (*weight)(DepthwisePlanesWeightParameters);
  void (*input)(DepthwisePlanesInputParameters) = nullptr;
};

template <class T, int kKernel>
void append(std::vector<Instance>& to, DataType dtype) {
  to.push_back({dtype, kKernel, 1, 1, hopper_kernel<DepthwisePlanesWeight<T, kKernel, 1, 1>, kMostWarps * 32>});
  to.push_back({dtype, kKernel, 1, 2, hopper_kernel<DepthwisePlanesWeight<T, kKernel, 1, 2>, kMostWarps * 32>});
  to.push_back({dtype, kKernel, 1, 4, hopper_kernel<DepthwisePlanesWeight<T, kKernel, 1, 4>, kMostWarps * 32>});
  to.push_back({dtype, kKernel, 2, 1, hopper_kernel<DepthwisePlanesWeight<T, kKernel, 2, 1>, kMostWarps * 32>,
                hopper_kernel<DepthwisePlanesInput<T, kKernel, 1>, kMostInputWarps * 32, 4>});
  to.push_back({dtype, kKernel, 2, 2, hopper_kernel<DepthwisePlanesWeight<T, kKernel, 2, 2>, kMostWarps * 32>,
                hopper_kernel<DepthwisePlanesInput<T, kKernel, 2>, kMostInputWarps * 32, 4>});
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

bool has_fusion(const DepthwiseBackwardArguments& a) {
  return a.prologue || a.gradient_prologue || a.sums || a.grad_add;
}

/// With so many columns of grad_y to a lane.
const Instance* instance_of(const DepthwiseBackwardArguments& a, int columns) {
  if (!lanes_have(a.grad_y.sizes[3], columns)) return nullptr;
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] &&
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

std::string why_no_gradient(const DepthwiseBackwardArguments& a, const ConstTensorView& x) {
  if (has_fusion(a)) return "nothing can be fused with it";
  if (a.window.dilation[0] != 1) return "it is for windows that are not dilated";
  return why_no_planes(x, a.grad_y, a.window);
}

// ---------------------------------------------------------------------------------------- gradients of weight and bias

/// A launch, worked out but for addresses; or why it does not fit.
struct WeightTiles {
  const Instance* instance = nullptr;
  DepthwisePlanesWeightParameters parameters;
  double cost = std::numeric_limits<double>::infinity();
  std::string why_not;

  WeightTiles() = default;
  /// Of a config: columns of a lane, bytes of planes and tiles, stages; with warps and splits, or those that promise to
  /// be fastest where it has none.
  WeightTiles(const DepthwiseBackwardArguments& a, const Config& config)
      : instance(instance_of(a, config[Knob::columns])) {
    const DepthwisePlanesTiling tiling = planes_tiling_of(config);
    if (instance == nullptr || tiling.stages < 1 || tiling.warps < 0 || tiling.warps > kMostWarps) {
      why_not = "there is no kernel with " + tuning::printed(config);
      return;
    }
    DepthwisePlanesWeightParameters& p = parameters;
    static_cast<DepthwisePlanesShape&>(p) = planes_shape(a.x.sizes, a.grad_y.sizes);
    const int bytes = static_cast<int>(size_of(a.x.dtype)), reach = instance->kernel / 2,
              rows = instance->kernel * instance->kernel + 1;
    const DepthwisePlanesSource x{p.input_width, p.input_height}, grad{p.output_width, p.output_height, reach + 1};
    why_not = cut_planes(p, bytes, x, grad, instance->columns, false, tiling);
    if (!why_not.empty()) return;
    const bool is_whole = p.strip_rows >= p.input_height;
    p.grad_pitch =
        grad.width * (is_whole ? grad.height : std::min(grad.height, p.strip_rows / instance->stride + grad.spare));
    p.stage_bytes = std::max(p.stage_bytes, (plane_sums_bytes(p, rows) / p.stages + 127) / 128 * 128);
    cost = share_out_blocks(p, p.groups, a.x.sizes[0], instance->columns, kMostWarps,
                            {tiling.warps, config[Knob::splits]}, [&](const DepthwisePlanesShape& trial) {
                              return resident_blocks(instance->weight, trial.warps * 32,
                                                     static_cast<std::size_t>(trial.memory_bytes()));
                            });
    if (cost == std::numeric_limits<double>::infinity()) why_not = "its tiles do not fit shared memory";
    const int splits = config[Knob::splits];
    if (splits > 0 && p.groups.splits != splits) why_not = "there are not so many images to split";
  }

  Config config(const DepthwisePlanesTiling& tiling) const {
    Config result = config_of(tiling, instance->columns);
    result[Knob::warps] = parameters.warps;
    result[Knob::splits] = parameters.groups.splits;
    return result;
  }
};

constexpr DepthwisePlanesTiling kWhole{.whole_bytes = 20000, .warps = 0}, kCut{.warps = 0};

/// With every number of columns to a lane, and the warps and splits that promise to be fastest for each; or with more
/// of those.
Configs weight_configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  const auto add = [&](const Config& config) {
    const bool is_new = std::find(list.begin(), list.end(), config) == list.end();
    if (is_new && WeightTiles(a, config).why_not.empty()) list.push_back(config);
  };
  for (const DepthwisePlanesTiling& tiling : {kCut, kWhole}) {
    for (const int columns : {4, 2, 1}) {
      const WeightTiles best(a, config_of(tiling, columns));
      if (!best.why_not.empty()) continue;
      Config config = best.config(tiling);
      add(config);
      for (const int warps : {1, 4, 8, 16}) {
        for (const int splits : {1, 4, 16, 64}) {
          if (splits > a.x.sizes[0]) continue;
          config[Knob::warps] = warps;
          config[Knob::splits] = splits;
          add(config);
        }
      }
    }
  }
  return list;
}

std::string weight_unsupported(const DepthwiseBackwardArguments& a) {
  std::string reason = why_not_on_gpu(a);
  if (!reason.empty()) return reason;
  if (!a.grad_weight && !a.grad_bias) return "neither grad_weight nor grad_bias is wanted";
  reason = why_no_gradient(a, a.x);
  if (!reason.empty() || !weight_configs(a).empty()) return reason;
  return WeightTiles(a, config_of(kWhole, lane_columns_of(a.grad_y.sizes[3], a.window.stride[0] == 2 ? 2 : 4))).why_not;
}

BackwardPlan plan_weight(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const WeightTiles tiles(a, config);
  if (!tiles.why_not.empty()) throw Unsupported(std::string(kName) + ": hopper_planes: " + tiles.why_not);
  const DepthwisePlanesWeightParameters& planned = tiles.parameters;
  const int taps = tiles.instance->kernel * tiles.instance->kernel;
  const auto memory = static_cast<std::size_t>(planned.memory_bytes());
  Arena measured(nullptr);
  take_partials(measured, planned, taps);
  return {measured.used(), [planned, kernel = tiles.instance->weight, memory, taps](
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

// ------------------------------------------------------------------------------------------------------ input gradient

/// A launch, worked out but for addresses; or why it does not fit.
struct InputTiles {
  const Instance* instance = nullptr;
  DepthwisePlanesInputParameters planned;
  std::size_t memory = 0;
  std::string why_not;

  InputTiles(const DepthwiseBackwardArguments& a, const Config& config)
      : instance(instance_of(a, config[Knob::columns])) {
    const DepthwisePlanesTiling tiling = planes_tiling_of(config);
    if (instance == nullptr || instance->input == nullptr || tiling.stages < 1 || tiling.warps < 1 ||
        tiling.warps > kMostInputWarps) {
      why_not = "there is no kernel with " + tuning::printed(config);
      return;
    }
    static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.grad_y.sizes);
    const DepthwisePlanesSource grad{planned.output_width, planned.output_height};
    why_not = cut_planes(planned, static_cast<int>(size_of(a.x.dtype)), grad, {}, instance->columns, true, tiling);
    if (!why_not.empty()) return;
    memory = static_cast<std::size_t>(planned.memory_bytes());
    if (memory > shared_memory_limit()) {
      why_not = "its tiles do not fit shared memory";
      return;
    }
    share_out(planned, resident_blocks(instance->input, planned.warps * 32, memory));
  }
};

Configs input_configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  for (const int columns : {2, 1}) {
    for (const int tile_bytes : {1536, 3072, 6144}) {
      for (const int stages : {2, 3, 4}) {
        for (const int warps : {2, kMostInputWarps}) {
          const Config config = config_of({.tile_bytes = tile_bytes, .stages = stages, .warps = warps}, columns);
          if (InputTiles(a, config).why_not.empty()) list.push_back(config);
        }
      }
    }
  }
  return list;
}

std::string input_unsupported(const DepthwiseBackwardArguments& a) {
  std::string reason = why_not_on_gpu(a);
  if (!reason.empty()) return reason;
  if (!a.grad_x) return "grad_x is not wanted";
  reason = why_no_gradient(a, ConstTensorView(a.grad_x));
  if (reason.empty() && a.window.stride[0] != 2) return "it is for a stride of 2";
  if (!reason.empty() || !input_configs(a).empty()) return reason;
  return InputTiles(a, depthwise_planes_input_prior(a)).why_not;
}

BackwardPlan plan_input(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const InputTiles tiles(a, config);
  if (!tiles.why_not.empty()) throw Unsupported(std::string(kName) + ": hopper_planes: " + tiles.why_not);
  return {0, [planned = tiles.planned, kernel = tiles.instance->input, memory = tiles.memory](
                 const DepthwiseBackwardArguments& like, const Execution& execution) {
            DepthwisePlanesInputParameters p = planned;
            p.grad_y = like.grad_y.data;
            p.weight = like.weight;
            p.grad_x = like.grad_x.data;
            launch_following(kName, kernel, p.blocks, p.warps * 32, execution.stream, p, memory);
          }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_planes_weight() {
  return {"hopper_planes", weight_unsupported, weight_configs, plan_weight};
}
Kernel<DepthwiseBackwardArguments> depthwise_planes_input() {
  return {"hopper_planes", input_unsupported, input_configs, plan_input};
}

std::optional<Config> fitting_depthwise_planes_weight(const DepthwiseBackwardArguments& a) {
  if (!why_no_gradient(a, a.x).empty()) return {};
  WeightTiles best;
  DepthwisePlanesTiling chosen;
  // Few columns to a lane make more warps with work.
  const auto consider = [&](const DepthwisePlanesTiling& tiling) {
    for (int columns = a.window.stride[0] == 2 ? 2 : 4; columns >= 1; columns /= 2) {
      const WeightTiles trial(a, config_of(tiling, columns));
      if (trial.cost >= best.cost) continue;
      best = trial;
      chosen = tiling;
    }
  };
  consider(kCut);
  // Planes that cannot be cut, whole: measured, worth it for many channels.
  if (best.instance == nullptr && a.x.sizes[1] >= 64) consider(kWhole);
  if (best.instance == nullptr) return {};
  return best.config(chosen);
}

bool fits_depthwise_planes_input(const DepthwiseBackwardArguments& a, const Config& config) {
  return why_no_gradient(a, ConstTensorView(a.grad_x)).empty() && InputTiles(a, config).why_not.empty();
}

}  // namespace fusedsc::gpu::hopper
#endif
