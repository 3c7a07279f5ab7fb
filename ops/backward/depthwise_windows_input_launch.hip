#include "fusedsc/backward/depthwise_passes.h"
#include "fusedsc/backward/depthwise_windows_input_kernel.h"
#include "fusedsc/backward/depthwise_windows_launch.h"
#include "fusedsc/common/gpu/depthwise_windows_plan.h"
#include "fusedsc/common/gpu/following_kernel.h"
#include "fusedsc/common/gpu/partials_launch.h"

namespace fusedsc::gpu {
namespace {

/// At a time, of one multiprocessor.
template <bool kSeams>
constexpr int kBlocks = kSeams ? 2 : 3;

template <class T, bool kClasses, bool kSeams>
FUSEDSC_KERNEL(kWindowThreads, (kWindowBlocks<T, kBlocks<kSeams>>))
depthwise_windows_input_kernel(DepthwiseWindowsInputParameters parameters) {
  wait_for_previous_kernel();
  depthwise_windows_input<T, kClasses, kSeams>(parameters);
}

using Kernel = void (*)(DepthwiseWindowsInputParameters);

template <bool kClasses, bool kSeams>
Kernel kernel_for(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return depthwise_windows_input_kernel<float, kClasses, kSeams>;
    case DataType::float64: return depthwise_windows_input_kernel<double, kClasses, kSeams>;
    case DataType::float16: return depthwise_windows_input_kernel<Float16, kClasses, kSeams>;
    case DataType::bfloat16: return depthwise_windows_input_kernel<BFloat16, kClasses, kSeams>;
  }
  return nullptr;
}

Kernel kernel_for(DataType dtype, bool has_classes, bool has_seams) {
  if (has_seams) return has_classes ? kernel_for<true, true>(dtype) : kernel_for<false, true>(dtype);
  return has_classes ? kernel_for<true, false>(dtype) : kernel_for<false, false>(dtype);
}

WindowGradientAxis gradient_axis(const WindowAxis& axis) {
  WindowGradientAxis result;
  result.axis = axis;
  result.all_parts = axis.period / axis.dilation;  // stride / greatest common divisor
  result.begin = axis.padding / axis.period;
  result.first = result.begin * axis.period - axis.padding;
  result.by_all_parts = Divisor(static_cast<std::uint32_t>(result.all_parts));
  return result;
}

/// How many of each class it takes to cover the image.
int inputs_of_class(const WindowGradientAxis& of) {
  return (of.axis.input - of.first + of.axis.period - 1) / of.axis.period;
}

class WindowsInputPass {
 public:
  static std::optional<WindowsInputPass> of(const DepthwiseBackwardArguments& a) {
    WindowsInputPass pass;
    DepthwiseWindowsInputParameters& p = pass.parameters_;
    const Window& window = a.window;
    p.rows = gradient_axis(window_axis(window, 0, window.padding.top, a.x.sizes[2], a.grad_y.sizes[2]));
    p.columns = gradient_axis(window_axis(window, 1, window.padding.left, a.x.sizes[3], a.grad_y.sizes[3]));
    for (const WindowGradientAxis* axis : {&p.rows, &p.columns}) {
      if (axis->axis.phases > 1 && axis->all_parts > 1) return std::nullopt;  // places would go beyond the period
    }
    const WindowAxis &rows = p.rows.axis, &columns = p.columns.axis;
    p.of.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, window);
    p.of.shape.channels = static_cast<int>(a.x.sizes[1]);
    const auto value_bytes = static_cast<int>(size_of(accumulation_type(a.x.dtype)));
    const WindowGrid grid{a.x.sizes[0],
                          a.x.sizes[1],
                          inputs_of_class(p.rows),
                          inputs_of_class(p.columns),
                          rows.phases,
                          a.grad_y.strides[1] < a.grad_y.strides[3],
                          p.of.shape.multiplier == 1 && windows_join({a.grad_y, a.gradient_prologue.output}),
                          kBlocks<false>};
    const bool has_classes = columns.period > 1;
    pass.kernel_ = kernel_for(a.x.dtype, has_classes, a.prologue || a.grad_add);
    const int multiplier = p.of.shape.multiplier;
    const double tap_share = static_cast<double>(rows.parts) * columns.parts / (rows.stride * columns.stride);
    const auto sums_of = [&](const WindowCut& cut) {
      // A group more, as those of the image may begin before the tile.
      WindowSums sums = window_sums(cut.rows * rows.stride, columns.period * cut.columns);
      sums.groups = Divisor(static_cast<std::uint32_t>(sums.pitch / kWindowColumns + 1));
      sums.items = cut.rows * rows.stride * (sums.pitch / kWindowColumns + 1);
      return sums;
    };
    const auto describe = [&](WindowCut& cut) {
      const int channels = cut.channel_lanes * multiplier;
      cut.places = window_places(channels, 1, cut.rows + rows.reach - 1, columns.phases, cut.columns, columns.reach);
      cut.items = cut.rows * rows.stride * columns.period * (cut.columns / kWindowColumns);
      std::int64_t values = cut.places.size() + window_weights(rows, columns, channels).size();
      if (has_classes) values += std::int64_t{sums_of(cut).plane} * cut.channel_lanes;
      cut.bytes = static_cast<std::size_t>(std::max<std::int64_t>(values, 2 * kWindowThreads) * value_bytes);
      cut.item_cost = (has_classes ? 110 : 80) +
                      window_taps_cost(rows, columns) * multiplier * tap_share / (rows.parts * columns.parts);
    };
    const auto resident = [&](std::size_t bytes) { return resident_blocks(pass.kernel_, kWindowThreads, bytes); };
    const std::optional<WindowPlan> plan = plan_windows(grid, columns.period, describe, resident);
    if (!plan) return std::nullopt;
    p.of.work = plan->work;
    p.of.stride_height = Divisor(static_cast<std::uint32_t>(rows.stride));
    p.of.stride_width = Divisor(static_cast<std::uint32_t>(columns.stride));
    p.of.join_columns = columns_join(kWindowColumns, a.grad_x);
    p.tile = plan->tile;
    p.places = plan->cut.places;
    p.weights = window_weights(rows, columns, plan->cut.channel_lanes * multiplier);
    if (has_classes) p.sums = sums_of(plan->cut);
    pass.memory_ = plan->cut.bytes;
    return pass;
  }

  void* take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const {
    return a.sums ? take_partial_sums(arena, a.x.dtype, parameters_.of.work, 2, a.x.sizes[1]) : nullptr;
  }

  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    DepthwiseWindowsInputParameters p = parameters_;
    p.of.grad_y = a.grad_y;
    p.of.weight = a.weight;
    if (a.prologue) p.of.x = a.x;
    p.of.grad_add = a.grad_add;
    p.of.gradient_prologue = prologue_of(a.gradient_prologue);
    p.of.prologue = prologue_of(a.prologue);
    p.of.mean = a.sums.mean.data;
    p.of.grad_x = a.grad_x;
    p.of.partials = take_partials(a, arena);
    launch_following(kDepthwiseBackward, kernel_, p.of.work.blocks(), kWindowThreads, execution.stream, p, memory_);
    if (!a.sums) return;
    launch_gradient_sums(kDepthwiseBackward, p.of.partials, p.of.work.splits, a.sums, a.x, execution.stream);
  }

 private:
  Kernel kernel_ = nullptr;
  DepthwiseWindowsInputParameters parameters_;  ///< without addresses
  std::size_t memory_ = 0;                      ///< of a block
};

}  // namespace

std::optional<Plan<DepthwiseBackwardArguments>> plan_depthwise_windows_input(const DepthwiseBackwardArguments& a) {
  const std::optional<WindowsInputPass> pass = WindowsInputPass::of(a);
  if (!pass) return std::nullopt;
  return Plan<DepthwiseBackwardArguments>{
      workspace_bytes_of(*pass, a), [pass = *pass](const DepthwiseBackwardArguments& like, const Execution& execution) {
        pass.run(like, execution);
      }};
}

}  // namespace fusedsc::gpu
