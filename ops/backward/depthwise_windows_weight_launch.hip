#include "fusedsc/backward/depthwise_passes.h"
#include "fusedsc/backward/depthwise_windows_launch.h"
#include "fusedsc/backward/depthwise_windows_weight_kernel.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/depthwise_windows_plan.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/partials_launch.h"

namespace fusedsc::gpu {
namespace {

constexpr int kBlocks = 3;  ///< at a time, of one multiprocessor

template <class T>
FUSEDSC_KERNEL(kWindowThreads, (kWindowBlocks<T, kBlocks>))
depthwise_windows_weight_kernel(DepthwiseWindowsWeightParameters parameters) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  depthwise_windows_weight<T>(parameters);
}

using Kernel = void (*)(DepthwiseWindowsWeightParameters);

Kernel kernel_for(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return depthwise_windows_weight_kernel<float>;
    case DataType::float64: return depthwise_windows_weight_kernel<double>;
    case DataType::float16: return depthwise_windows_weight_kernel<Float16>;
    case DataType::bfloat16: return depthwise_windows_weight_kernel<BFloat16>;
  }
  return nullptr;
}

class WindowsWeightPass {
 public:
  static std::optional<WindowsWeightPass> of(const DepthwiseBackwardArguments& a) {
    WindowsWeightPass pass;
    DepthwiseWindowsWeightParameters& p = pass.parameters_;
    const Window& window = a.window;
    p.rows = window_axis(window, 0, window.padding.top, a.x.sizes[2], a.grad_y.sizes[2]);
    p.columns = window_axis(window, 1, window.padding.left, a.x.sizes[3], a.grad_y.sizes[3]);
    p.of.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, window);
    const auto value_bytes = static_cast<int>(size_of(accumulation_type(a.x.dtype)));
    const WindowGrid grid{a.grad_y.sizes[0],
                          a.grad_y.sizes[1],
                          int_divide_up(p.rows.output, p.rows.phases),
                          int_divide_up(p.columns.output, p.columns.phases),
                          p.rows.phases,
                          a.grad_y.strides[1] < a.grad_y.strides[3],
                          p.of.shape.multiplier == 1 && windows_join({a.x, a.grad_y, a.gradient_prologue.output}),
                          kBlocks};
    pass.kernel_ = kernel_for(a.x.dtype);
    const int multiplier = p.of.shape.multiplier;
    const int runs = int_divide_up(p.columns.reach, kWindowTaps);
    if (std::int64_t{p.rows.kernel} * p.columns.kernel >= std::int64_t{1} << 24) return std::nullopt;
    p.tap_runs = p.rows.kernel * p.columns.parts * runs;
    const auto describe = [&](WindowCut& cut) {
      const int channels = multiplier == 1 ? cut.channel_lanes : (cut.channel_lanes - 1) / multiplier + 2;
      cut.places = window_places(channels, p.rows.parts, cut.rows + p.rows.reach - 1,
                                 p.columns.phases * p.columns.parts, cut.columns, p.columns.reach);
      cut.row_parts = p.rows.parts;
      const WindowPlaces grads = window_places(cut.channel_lanes, 1, cut.rows, p.columns.phases, cut.columns, 0);
      cut.bytes = static_cast<std::size_t>(
          std::max<std::int64_t>(cut.places.size() + grads.size(), (kWindowTaps + 1) * kWindowThreads) * value_bytes);
      cut.items = cut.rows * p.columns.phases;
      cut.blocks = int_divide_up(p.tap_runs, cut.item_lanes);
      const int positions = std::max(cut.item_lanes / int_divide_up(p.tap_runs, cut.blocks), 1);
      cut.item_cost = 0;
      cut.extra_cost = int_divide_up(cut.items, positions) * (25.0 + cut.columns / kWindowColumns * 24.0) +
                       int_divide_up(grads.plane, cut.item_lanes) * 16.0;
    };
    const auto resident = [&](std::size_t bytes) { return resident_blocks(pass.kernel_, kWindowThreads, bytes); };
    const std::optional<WindowPlan> plan = plan_windows(grid, p.columns.phases, describe, resident);
    if (!plan) return std::nullopt;
    const WindowCut& cut = plan->cut;
    p.of.work = plan->work;
    p.tile = plan->tile;
    p.inputs = cut.places;
    p.grads = window_places(cut.channel_lanes, 1, cut.rows, p.columns.phases, cut.columns, 0);
    p.tap_lanes = int_divide_up(p.tap_runs, cut.blocks);
    p.position_lanes = std::max(cut.item_lanes / p.tap_lanes, 1);
    const auto divisor = [](int count) { return Divisor(static_cast<std::uint32_t>(count)); };
    p.by_tap_lanes = divisor(p.tap_lanes);
    p.by_column_runs = divisor(p.columns.parts * runs);
    p.by_runs = divisor(runs);
    p.by_row_parts = divisor(p.rows.parts);
    p.by_phases = divisor(p.columns.phases);
    p.of.by_tap_groups = divisor(cut.blocks);
    pass.tap_blocks_ = cut.blocks;
    pass.memory_ = cut.bytes;
    return pass;
  }

  void* take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const {
    const DepthwiseShape& shape = parameters_.of.shape;
    return parameters_.of.work.splits > 1
               ? take_partial_sums(arena, a.x.dtype, parameters_.of.work,
                                   std::int64_t{shape.kernel_height} * shape.kernel_width + 1, a.grad_y.sizes[1])
               : nullptr;
  }

  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    DepthwiseWindowsWeightParameters p = parameters_;
    p.of.x = a.x;
    p.of.grad_y = a.grad_y;
    p.of.prologue = prologue_of(a.prologue);
    p.of.gradient_prologue = prologue_of(a.gradient_prologue);
    p.of.partials = take_partials(a, arena);
    p.of.grad_weight = a.grad_weight;
    p.of.grad_bias = a.grad_bias.data;
    launch_following(kDepthwiseBackward, kernel_, std::int64_t{p.of.work.blocks()} * tap_blocks_, kWindowThreads,
                     execution.stream, p, memory_);
    if (p.of.partials == nullptr) return;
    launch_sum_of_weight_gradient(a, p.of.shape, p.of.partials, p.of.work.splits, execution);
  }

 private:
  Kernel kernel_ = nullptr;
  DepthwiseWindowsWeightParameters parameters_;  ///< without addresses
  int tap_blocks_ = 1;                           ///< that share a tile's taps
  std::size_t memory_ = 0;                       ///< of a block
};

}  // namespace

std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_windows_weight(const DepthwiseBackwardArguments& a) {
  const std::optional<WindowsWeightPass> pass = WindowsWeightPass::of(a);
  if (!pass) return std::nullopt;
  return Plan<DepthwiseBackwardArguments>{
      workspace_bytes_of(*pass, a), [pass = *pass](const DepthwiseBackwardArguments& like, const Execution& execution) {
        pass.run(like, execution);
      }};
}

}  // namespace fusedsc::gpu
