#ifdef FUSEDSC_HOPPER
#include <algorithm>
#include <vector>

#include "fusedsc/common/gpu/hopper/hopper_host.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_kernel.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
constexpr int kMomentsBytes = 3 * 32 * 4;  ///< of a warp
constexpr int kMostWarps = 4;              ///< of a block

/// Planes that are cut where they are more, and bytes of a tile.
constexpr std::pair<int, int> kTileBytes[] = {{6600, 1536}, {6600, 3072}, {6600, 6144}, {13312, 6144}};

using PlanesKernel = void (*)(DepthwisePlanesParameters);

struct Instance {
  DataType dtype;
  int kernel, stride, columns, dilation;
  PlanesKernel plain, statistics;
};

template <class T, int kKernel, int kStride, int kColumns, int kDilation = 1>
constexpr Instance instance(DataType dtype) {
  return {dtype,
          kKernel,
          kStride,
          kColumns,
          kDilation,
          hopper_kernel<DepthwisePlanes<T, kKernel, kStride, kColumns, kDilation, false>, kMostWarps * 32, 4>,
          hopper_kernel<DepthwisePlanes<T, kKernel, kStride, kColumns, kDilation, true>, kMostWarps * 32, 4>};
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

const Instance* instance_of(const DepthwiseArguments& a, int columns) {
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == a.window.kernel[0] && instance.stride == a.window.stride[0] &&
        instance.columns == columns && instance.dilation == a.window.dilation[0]) {
      return &instance;
    }
  }
  return nullptr;
}

float* take_partials(Arena& arena, const DepthwisePlanesParameters& p) {
  return arena.take<float>(std::int64_t{3} * p.groups.splits * p.channels);
}

/// A launch, worked out but for addresses; or why it does not fit.
struct PlanesPass {
  PlanesKernel kernel = nullptr;
  DepthwisePlanesParameters planned;
  std::size_t memory = 0;
  std::string why_not;

  PlanesPass(const DepthwiseArguments& a, const Config& config) {
    const int columns = config[Knob::columns];
    const Instance* instance = lanes_have(a.y.sizes[3], columns) ? instance_of(a, columns) : nullptr;
    const DepthwisePlanesTiling tiling = planes_tiling_of(config);
    if (instance == nullptr || tiling.stages < 1 || tiling.warps < 1 || tiling.warps > kMostWarps) {
      why_not = "there is no kernel with " + tuning::printed(config);
      return;
    }
    kernel = a.statistics ? instance->statistics : instance->plain;
    static_cast<DepthwisePlanesShape&>(planned) = planes_shape(a.x.sizes, a.y.sizes);
    const DepthwisePlanesSource x{planned.input_width, planned.input_height,
                                  instance->kernel / 2 * instance->dilation * 2};
    const int element_bytes = static_cast<int>(size_of(a.x.dtype));
    why_not = cut_planes(planned, element_bytes, x, {}, instance->columns, !a.statistics, tiling);
    if (!why_not.empty()) return;
    if (a.statistics) {
      if (!are_whole_runs(planned, element_bytes)) {
        why_not = "tiles are no whole runs of 16 bytes";
        return;
      }
      planned.stage_bytes = std::max(planned.stage_bytes, kMomentsBytes);
    }
    memory = static_cast<std::size_t>(planned.memory_bytes());
    if (memory > shared_memory_limit()) {
      why_not = "its tiles do not fit shared memory";
      return;
    }
    const int resident = resident_blocks(kernel, planned.warps * 32, memory);
    if (a.statistics) planned.groups = share_out_groups(planned, a.x.sizes[0], resident);
    else
      planned.parts = share_out_parts(planned, instance->stride, instance->kernel / 2 * instance->dilation, resident);
  }
};

Configs configs(const DepthwiseArguments& a) {
  Configs list;
  for (const int columns : {4, 2, 1}) {
    for (const auto& [whole_bytes, tile_bytes] : kTileBytes) {
      for (const int stages : {2, 3}) {
        for (const int warps : {2, kMostWarps}) {
          const Config config = config_of({whole_bytes, tile_bytes, stages, warps}, columns);
          if (PlanesPass(a, config).why_not.empty()) list.push_back(config);
        }
      }
    }
  }
  return list;
}

std::string unsupported(const DepthwiseArguments& a) {
  std::string reason = why_not_on_gpu(a);
  if (!reason.empty()) return reason;
  if (a.prologue || a.epilogue) return "neither a prologue nor an epilogue can be fused with it";
  reason = why_no_planes(a.x, ConstTensorView(a.y), a.window);
  if (!reason.empty() || !configs(a).empty()) return reason;
  return PlanesPass(a, depthwise_planes_prior(a)).why_not;
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const PlanesPass pass(a, config);
  if (!pass.why_not.empty()) throw Unsupported(std::string(kName) + ": hopper_planes: " + pass.why_not);
  Arena measured(nullptr);
  if (a.statistics) take_partials(measured, pass.planned);
  return {measured.used(), [planned = pass.planned, kernel = pass.kernel, memory = pass.memory](
                               const DepthwiseArguments& like, const Execution& execution) {
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
                                 like.statistics, like.y.sizes[0] * like.y.sizes[2] * like.y.sizes[3],
                                 execution.stream);
          }};
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_planes() { return {"hopper_planes", unsupported, configs, plan}; }

bool fits_depthwise_planes(const DepthwiseArguments& a, const Config& config) {
  return !a.prologue && !a.epilogue && why_no_planes(a.x, ConstTensorView(a.y), a.window).empty() &&
         PlanesPass(a, config).why_not.empty();
}

}  // namespace fusedsc::gpu::hopper
#endif
