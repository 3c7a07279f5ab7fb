#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/rows/depthwise_passes.h"
#include "fusedsc/backward/depthwise/windows/depthwise_windows_weight_kernel.h"
#include "fusedsc/common/divide_up.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_plan.h"

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

using WeightKernel = void (*)(DepthwiseWindowsWeightParameters);

WeightKernel kernel_for(DataType dtype) {
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
  /// All but the tiles.
  explicit WindowsWeightPass(const DepthwiseBackwardArguments& a) {
    DepthwiseWindowsWeightParameters& p = parameters_;
    const Window& window = a.window;
    p.rows = window_axis(window, 0, window.padding.top, a.x.sizes[2], a.grad_y.sizes[2]);
    p.columns = window_axis(window, 1, window.padding.left, a.x.sizes[3], a.grad_y.sizes[3]);
    p.of.shape = depthwise_shape(a.x.sizes, a.grad_y.sizes, window);
    value_bytes_ = static_cast<int>(size_of(accumulation_type(a.x.dtype)));
    grid_ = {a.grad_y.sizes[0],
             a.grad_y.sizes[1],
             int_divide_up(p.rows.output, p.rows.phases),
             int_divide_up(p.columns.output, p.columns.phases),
             p.rows.phases,
             a.grad_y.strides[1] < a.grad_y.strides[3],
             p.of.shape.multiplier == 1 && windows_join({a.x, a.grad_y, a.gradient_prologue.output}),
             kBlocks};
    kernel_ = kernel_for(a.x.dtype);
    if (!has_too_many_taps()) p.tap_runs = p.rows.kernel * p.columns.parts * runs();
  }

  std::vector<WindowCandidate> candidates() const {
    if (has_too_many_taps()) return {};
    return window_candidates(grid_, [this](WindowCut& cut) { describe(cut); });
  }

  void cut(const WindowCandidate& candidate) {
    DepthwiseWindowsWeightParameters& p = parameters_;
    const WindowCut& cut = candidate.cut;
    memory_ = cut.bytes;
    tap_blocks_ = cut.blocks;
    const WindowPlan plan =
        plan_windows(grid_, p.columns.phases, candidate, resident_blocks(kernel_, kWindowThreads, memory_));
    p.of.work = plan.work;
    p.tile = plan.tile;
    p.inputs = cut.places;
    p.grads = grads_of(cut);
    p.tap_lanes = int_divide_up(p.tap_runs, cut.blocks);
    p.position_lanes = std::max(cut.item_lanes / p.tap_lanes, 1);
    const auto divisor = [](int count) { return Divisor(static_cast<std::uint32_t>(count)); };
    p.by_tap_lanes = divisor(p.tap_lanes);
    p.by_column_runs = divisor(p.columns.parts * runs());
    p.by_runs = divisor(runs());
    p.by_row_parts = divisor(p.rows.parts);
    p.by_phases = divisor(p.columns.phases);
    p.of.by_tap_groups = divisor(cut.blocks);
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
  bool has_too_many_taps() const {
    return std::int64_t{parameters_.rows.kernel} * parameters_.columns.kernel >= std::int64_t{1} << 24;
  }

  int runs() const { return int_divide_up(parameters_.columns.reach, kWindowTaps); }

  WindowPlaces grads_of(const WindowCut& cut) const {
    return window_places(cut.channel_lanes, 1, cut.rows, parameters_.columns.phases, cut.columns, 0);
  }

  void describe(WindowCut& cut) const {
    const DepthwiseWindowsWeightParameters& p = parameters_;
    const int multiplier = p.of.shape.multiplier;
    const int channels = multiplier == 1 ? cut.channel_lanes : (cut.channel_lanes - 1) / multiplier + 2;
    cut.places = window_places(channels, p.rows.parts, cut.rows + p.rows.reach - 1, p.columns.phases * p.columns.parts,
                               cut.columns, p.columns.reach);
    cut.row_parts = p.rows.parts;
    const WindowPlaces grads = grads_of(cut);
    cut.bytes = static_cast<std::size_t>(
        std::max<std::int64_t>(cut.places.size() + grads.size(), (kWindowTaps + 1) * kWindowThreads) * value_bytes_);
    cut.items = cut.rows * p.columns.phases;
    cut.blocks = int_divide_up(p.tap_runs, cut.item_lanes);
    const int positions = std::max(cut.item_lanes / int_divide_up(p.tap_runs, cut.blocks), 1);
    cut.item_cost = 0;
    cut.extra_cost = int_divide_up(cut.items, positions) * (25.0 + cut.columns / kWindowColumns * 24.0) +
                     int_divide_up(grads.plane, cut.item_lanes) * 16.0;
  }

  WeightKernel kernel_ = nullptr;
  DepthwiseWindowsWeightParameters parameters_;  ///< without addresses
  WindowGrid grid_{};
  int value_bytes_ = 4;
  int tap_blocks_ = 1;      ///< that share a tile's taps
  std::size_t memory_ = 0;  ///< of a block
};

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_weight && !a.grad_bias) return "neither grad_weight nor grad_bias is wanted";
  return WindowsWeightPass(a).candidates().empty() ? "no tile of such windows fits shared memory" : "";
}

Configs configs(const DepthwiseBackwardArguments& a) { return window_configs(WindowsWeightPass(a).candidates()); }

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  WindowsWeightPass pass(a);
  pass.cut(window_candidate(kDepthwiseBackward, pass.candidates(), config));
  return plan_of_pass(a, pass);
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_windows_weight() { return {"gpu_windows", unsupported, configs, plan}; }

Config depthwise_windows_weight_prior(const DepthwiseBackwardArguments& a) {
  return window_prior_config(WindowsWeightPass(a).candidates());
}

}  // namespace fusedsc::gpu
