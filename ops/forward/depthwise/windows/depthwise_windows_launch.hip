#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/common/gpu/vendor/following_kernel.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_kernel.h"
#include "fusedsc/forward/depthwise/windows/depthwise_windows_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {
namespace {

constexpr int kBlocks = 4;  ///< at a time, of one multiprocessor

template <class T, bool kPhases>
FUSEDSC_KERNEL(kWindowThreads, (kWindowBlocks<T, kBlocks>))
depthwise_windows_kernel(DepthwiseWindowsParameters parameters) {
  wait_for_previous_kernel();
  depthwise_windows<T, kPhases>(parameters);
}

using WindowsKernel = void (*)(DepthwiseWindowsParameters);

template <bool kPhases>
WindowsKernel kernel_for(DataType dtype) {
  switch (dtype) {
    case DataType::float32: return depthwise_windows_kernel<float, kPhases>;
    case DataType::float64: return depthwise_windows_kernel<double, kPhases>;
    case DataType::float16: return depthwise_windows_kernel<Float16, kPhases>;
    case DataType::bfloat16: return depthwise_windows_kernel<BFloat16, kPhases>;
  }
  return nullptr;
}

/// A launch with the merging of its statistics, worked out but for addresses.
class WindowsPass {
 public:
  /// All but the tiles.
  explicit WindowsPass(const DepthwiseArguments& a) {
    DepthwiseWindowsParameters& p = parameters_;
    const Window& window = a.window;
    p.rows = window_axis(window, 0, window.padding.top, a.x.sizes[2], a.y.sizes[2]);
    p.columns = window_axis(window, 1, window.padding.left, a.x.sizes[3], a.y.sizes[3]);
    p.of.shape = depthwise_shape(a.x.sizes, a.y.sizes, window);
    p.of.join_columns = columns_join(kWindowColumns, a.y);
    value_bytes_ = static_cast<int>(size_of(accumulation_type(a.x.dtype)));
    const auto of_phase = [](int output, int phases) { return (output + phases - 1) / phases; };
    grid_ = {a.y.sizes[0],
             a.y.sizes[1],
             of_phase(p.rows.output, p.rows.phases),
             of_phase(p.columns.output, p.columns.phases),
             p.rows.phases,
             a.x.strides[1] < a.x.strides[3],
             p.of.shape.multiplier == 1 && windows_join({a.x}),
             kBlocks};
    kernel_ = has_phases() ? kernel_for<true>(a.x.dtype) : kernel_for<false>(a.x.dtype);
  }

  std::vector<WindowCandidate> candidates() const {
    return window_candidates(grid_, [this](WindowCut& cut) { describe(cut); });
  }

  void cut(const WindowCandidate& candidate) {
    DepthwiseWindowsParameters& p = parameters_;
    const WindowCut& cut = candidate.cut;
    memory_ = cut.bytes;
    const WindowPlan plan =
        plan_windows(grid_, p.columns.phases, candidate, resident_blocks(kernel_, kWindowThreads, memory_));
    p.of.work = plan.work;
    p.tile = plan.tile;
    p.places = cut.places;
    p.weights = window_weights(p.rows, p.columns, cut.channel_lanes);
    if (has_phases()) p.sums = window_sums(cut.rows, p.columns.phases * cut.columns);
  }

  std::size_t workspace_bytes(const DepthwiseArguments& a) const {
    Arena measured(nullptr);
    take_partials(a, measured);
    return measured.used();
  }

  void run(const DepthwiseArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    DepthwiseWindowsParameters p = parameters_;
    p.of.x = a.x;
    p.of.weight = a.weight;
    p.of.bias = a.bias.data;
    p.of.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
    p.of.epilogue = {a.epilogue.scale.data, a.epilogue.shift.data, a.epilogue.activation};
    p.of.residual = a.epilogue.residual;
    p.of.y = a.y;
    p.of.partials = take_partials(a, arena);
    launch_following("depthwise_conv2d", kernel_, p.of.work.blocks(), kWindowThreads, execution.stream, p, memory_);
    if (!a.statistics) return;
    launch_merge_moments("depthwise_conv2d: statistics", accumulation_type(a.x.dtype), p.of.partials, p.of.work.splits,
                         a.statistics, a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
  }

 private:
  bool has_phases() const { return parameters_.columns.phases > 1; }

  void describe(WindowCut& cut) const {
    const WindowAxis &rows = parameters_.rows, &columns = parameters_.columns;
    const int multiplier = parameters_.of.shape.multiplier;
    const int channels = multiplier == 1 ? cut.channel_lanes : (cut.channel_lanes - 1) / multiplier + 2;
    cut.places = window_places(channels, rows.parts, cut.rows + rows.reach - 1, columns.phases * columns.parts,
                               cut.columns, columns.reach);
    cut.row_parts = rows.parts;
    cut.items = cut.rows * columns.phases * (cut.columns / kWindowColumns);
    std::int64_t values = cut.places.size() + window_weights(rows, columns, cut.channel_lanes).size();
    if (has_phases()) {
      values += std::int64_t{window_sums(cut.rows, columns.phases * cut.columns).plane} * cut.channel_lanes;
    }
    cut.bytes = static_cast<std::size_t>(std::max<std::int64_t>(values, 3 * kWindowThreads) * value_bytes_);
    cut.item_cost = (has_phases() ? 90 : 60) + window_taps_cost(rows, columns);
  }

  void* take_partials(const DepthwiseArguments& a, Arena& arena) const {
    if (!a.statistics) return nullptr;
    const std::int64_t size = std::int64_t{3} * parameters_.of.work.splits * a.y.sizes[1];
    return arena.take<char>(size * static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype))));
  }

  WindowsKernel kernel_ = nullptr;
  DepthwiseWindowsParameters parameters_;  ///< without addresses
  WindowGrid grid_{};
  int value_bytes_ = 4;
  std::size_t memory_ = 0;  ///< of a block
};

std::string unsupported(const DepthwiseArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  return WindowsPass(a).candidates().empty() ? "no tile of such windows fits shared memory" : "";
}

Configs configs(const DepthwiseArguments& a) { return window_configs(WindowsPass(a).candidates()); }

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  WindowsPass pass(a);
  pass.cut(window_candidate("depthwise_conv2d", pass.candidates(), config));
  return {pass.workspace_bytes(a),
          [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

tuning::Kernel<DepthwiseArguments> depthwise_windows() { return {"gpu_windows", unsupported, configs, plan}; }

Config depthwise_windows_prior(const DepthwiseArguments& a) { return window_prior_config(WindowsPass(a).candidates()); }

}  // namespace fusedsc::gpu
