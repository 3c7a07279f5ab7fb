#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/rows/depthwise_passes.h"
#include "fusedsc/backward/depthwise/windows/depthwise_windows_input_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_plan.h"

namespace fusedsc::gpu {
namespace {

/// At a time, of one multiprocessor.
template <bool kFused>
constexpr int kBlocks = kFused ? 2 : 3;

template <class T, bool kClasses, bool kFused>
FUSEDSC_KERNEL(kWindowThreads, (kWindowBlocks<T, kBlocks<kFused>>))
depthwise_windows_input_kernel(DepthwiseWindowsInputParameters parameters) {
  wait_for_previous_kernel();
  depthwise_windows_input<T, kClasses, kFused>(parameters);
}

using InputKernel = void (*)(DepthwiseWindowsInputParameters);

template <bool kClasses, bool kFused>
InputKernel kernel_for(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return depthwise_windows_input_kernel<float, kClasses, kFused>;
    case DataType::float64: return depthwise_windows_input_kernel<double, kClasses, kFused>;
    case DataType::float16: return depthwise_windows_input_kernel<Float16, kClasses, kFused>;
    case DataType::bfloat16: return depthwise_windows_input_kernel<BFloat16, kClasses, kFused>;
  }
  return nullptr;
}

InputKernel kernel_for(DataType dtype, bool has_classes, bool has_fusion) {
  if (has_fusion) return has_classes ? kernel_for<true, true>(dtype) : kernel_for<false, true>(dtype);
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
  /// All but the tiles.
  explicit WindowsInputPass(const DepthwiseBackwardArguments& a) {
    DepthwiseWindowsInputParameters& p = parameters_;
    const Window& window = a.window;
    p.rows = gradient_axis(window_axis(window, 0, window.padding.top, a.x.sizes[2], a.grad_y.sizes[2]));
    p.columns = gradient_axis(window_axis(window, 1, window.padding.left, a.x.sizes[3], a.grad_y.sizes[3]));
    const WindowAxis &rows = p.rows.axis, &columns = p.columns.axis;
    p.of.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, window);
    p.of.shape.channels = static_cast<int>(a.x.sizes[1]);
    p.of.stride_height = Divisor(static_cast<std::uint32_t>(rows.stride));
    p.of.stride_width = Divisor(static_cast<std::uint32_t>(columns.stride));
    p.of.join_columns = columns_join(kWindowColumns, a.grad_x);
    value_bytes_ = static_cast<int>(size_of(accumulation_type(a.x.dtype)));
    grid_ = {a.x.sizes[0],
             a.x.sizes[1],
             inputs_of_class(p.rows),
             inputs_of_class(p.columns),
             rows.phases,
             a.grad_y.strides[1] < a.grad_y.strides[3],
             p.of.shape.multiplier == 1 && windows_join({a.grad_y, a.gradient_prologue.output}),
             kBlocks<false>};
    kernel_ = kernel_for(a.x.dtype, has_classes(), a.prologue || a.grad_add);
  }

  std::vector<WindowCandidate> candidates() const {
    for (const WindowGradientAxis* axis : {&parameters_.rows, &parameters_.columns}) {
      if (axis->axis.phases > 1 && axis->all_parts > 1) return {};  // places would go beyond the period
    }
    return window_candidates(grid_, [this](WindowCut& cut) { describe(cut); });
  }

  void cut(const WindowCandidate& candidate) {
    DepthwiseWindowsInputParameters& p = parameters_;
    const WindowAxis &rows = p.rows.axis, &columns = p.columns.axis;
    const WindowCut& cut = candidate.cut;
    memory_ = cut.bytes;
    const WindowPlan plan =
        plan_windows(grid_, columns.period, candidate, resident_blocks(kernel_, kWindowThreads, memory_));
    p.of.work = plan.work;
    p.tile = plan.tile;
    p.places = cut.places;
    p.weights = window_weights(rows, columns, cut.channel_lanes * p.of.shape.multiplier);
    if (has_classes()) p.sums = sums_of(cut);
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
  bool has_classes() const { return parameters_.columns.axis.period > 1; }

  WindowSums sums_of(const WindowCut& cut) const {
    // A group more, as those of the image may begin before the tile.
    const WindowAxis &rows = parameters_.rows.axis, &columns = parameters_.columns.axis;
    WindowSums sums = window_sums(cut.rows * rows.stride, columns.period * cut.columns);
    sums.groups = Divisor(static_cast<std::uint32_t>(sums.pitch / kWindowColumns + 1));
    sums.items = cut.rows * rows.stride * (sums.pitch / kWindowColumns + 1);
    return sums;
  }

  void describe(WindowCut& cut) const {
    const WindowAxis &rows = parameters_.rows.axis, &columns = parameters_.columns.axis;
    const int multiplier = parameters_.of.shape.multiplier, channels = cut.channel_lanes * multiplier;
    const double tap_share = static_cast<double>(rows.parts) * columns.parts / (rows.stride * columns.stride);
    cut.places = window_places(channels, 1, cut.rows + rows.reach - 1, columns.phases, cut.columns, columns.reach);
    cut.items = cut.rows * rows.stride * columns.period * (cut.columns / kWindowColumns);
    std::int64_t values = cut.places.size() + window_weights(rows, columns, channels).size();
    if (has_classes()) values += std::int64_t{sums_of(cut).plane} * cut.channel_lanes;
    cut.bytes = static_cast<std::size_t>(std::max<std::int64_t>(values, 2 * kWindowThreads) * value_bytes_);
    cut.item_cost = (has_classes() ? 110 : 80) +
                    window_taps_cost(rows, columns) * multiplier * tap_share / (rows.parts * columns.parts);
  }

  InputKernel kernel_ = nullptr;
  DepthwiseWindowsInputParameters parameters_;  ///< without addresses
  WindowGrid grid_{};
  int value_bytes_ = 4;
  std::size_t memory_ = 0;  ///< of a block
};

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_x) return "grad_x is not wanted";
  return WindowsInputPass(a).candidates().empty() ? "no tile of such windows fits shared memory" : "";
}

Configs configs(const DepthwiseBackwardArguments& a) { return window_configs(WindowsInputPass(a).candidates()); }

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  WindowsInputPass pass(a);
  pass.cut(window_candidate(kDepthwiseBackward, pass.candidates(), config));
  return plan_of_pass(a, pass);
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_windows_input() { return {"gpu_windows", unsupported, configs, plan}; }

Config depthwise_windows_input_prior(const DepthwiseBackwardArguments& a) {
  return window_prior_config(WindowsInputPass(a).candidates());
}

}  // namespace fusedsc::gpu
