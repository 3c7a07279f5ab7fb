#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/generated/depthwise_generated.h"
#include "fusedsc/forward/depthwise/rows/depthwise_arguments.h"
#include "fusedsc/runtime/arena.h"
#include "fusedsc/tuning/compiler/generated_kernel.h"

namespace fusedsc::gpu {
namespace {

constexpr const char* kName = "depthwise_conv2d";

generated::DepthwiseTarget target_of(const DepthwiseArguments& a) {
  return {architecture(), kCopiesRunAhead, joined_channels({a.x, a.y, a.epilogue.residual})};
}

/// A launch with the merging of its statistics, worked out but for addresses.
class Pass {
 public:
  Pass(const DepthwiseArguments& a, const Config& config)
      : text_(generated::depthwise_text(a, target_of(a), config)),
        kernel_(text_.text, text_.shared_memory_bytes),
        join_columns_(columns_join(text_.columns, a.y)) {
    const auto overlap = static_cast<int>((a.window.kernel[0] - 1) / a.window.stride[0]);
    work_ = plan_depthwise_work(grid_of(a, overlap), {text_.channels, text_.columns, text_.period},
                                kernel_.resident_blocks(kItemThreads));
  }

  std::size_t workspace_bytes(const DepthwiseArguments& a) const {
    Arena measured(nullptr);
    take_partials(a, measured);
    return measured.used();
  }

  void run(const DepthwiseArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    const DepthwiseParameters p = parameters_of(a, work_, join_columns_, take_partials(a, arena));
    kernel_.launch(kName, work_.blocks(), kItemThreads, execution.stream, p);
    if (!a.statistics) return;
    launch_merge_moments("depthwise_conv2d: statistics", accumulation_type(a.x.dtype), p.partials, work_.splits,
                         a.statistics, a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
  }

 private:
  void* take_partials(const DepthwiseArguments& a, Arena& arena) const {
    if (!a.statistics) return nullptr;
    const std::int64_t size = std::int64_t{3} * work_.splits * a.y.sizes[1];
    return arena.take<char>(size * static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype))));
  }

  generated::DepthwiseText text_;
  GeneratedKernel kernel_;
  ItemWork work_;
  bool join_columns_;
};

Configs configs(const DepthwiseArguments& a) { return generated::depthwise_configs(a, target_of(a)); }

std::string unsupported(const DepthwiseArguments& a) {
  if (std::string elsewhere = why_not_on_gpu(a); !elsewhere.empty()) return elsewhere;
  return why_not_generated(generated::why_no_depthwise_text(a), configs, a);
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const Pass pass(a, config);
  return {pass.workspace_bytes(a),
          [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

std::string source(const DepthwiseArguments& a, const Config& config) {
  return generated::depthwise_text(a, target_of(a), config).text;
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_generated() { return {"generated", unsupported, configs, plan, source}; }

}  // namespace fusedsc::gpu
