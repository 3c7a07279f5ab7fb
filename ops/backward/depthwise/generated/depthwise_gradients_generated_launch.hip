#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/generated/depthwise_gradients_generated.h"
#include "fusedsc/backward/depthwise/rows/depthwise_gradient_arguments.h"
#include "fusedsc/tuning/compiler/generated_kernel.h"

namespace fusedsc::gpu {
namespace {

using generated::DepthwiseTarget;
using generated::DepthwiseText;
using tuning::Direction;

int overlap_of(const Window& window) { return static_cast<int>((window.kernel[0] - 1) / window.stride[0]); }

DepthwiseTarget target_of(const DepthwiseBackwardArguments& a, Direction direction) {
  const int joined = direction == Direction::grad_input
                         ? joined_channels({a.x, a.grad_y, a.gradient_prologue.output, a.grad_x, a.grad_add})
                         : joined_channels({a.x, a.grad_y, a.gradient_prologue.output});
  return {architecture(), kCopiesRunAhead, joined};
}

DepthwiseText text_of(const DepthwiseBackwardArguments& a, Direction direction, const Config& config) {
  return generated::depthwise_gradient_text(a, target_of(a, direction), direction, config);
}

/// A launch with the sum of what its blocks leave, worked out but for addresses.
class Pass {
 public:
  Pass(const DepthwiseBackwardArguments& a, const DepthwiseText& text, const DepthwiseGrid& grid)
      : kernel_(text.text, text.shared_memory_bytes),
        work_(plan_depthwise_work(grid, {text.channels, text.columns, text.period},
                                  kernel_.resident_blocks(kItemThreads))),
        join_columns_(input_columns_join(a, text.columns * a.window.stride[1])) {}

 protected:
  template <class Parameters>
  void launch(const Parameters& parameters, const Execution& execution) const {
    kernel_.launch(kDepthwiseBackward, work_.blocks(), kItemThreads, execution.stream, parameters);
  }

  GeneratedKernel kernel_;
  ItemWork work_;
  bool join_columns_;  ///< of grad_x
};

class InputPass : Pass {
 public:
  static constexpr Direction kDirection = Direction::grad_input;

  InputPass(const DepthwiseBackwardArguments& a, const Config& config)
      : Pass(a, text_of(a, kDirection, config),
             input_grid_of(a, static_cast<int>(a.window.stride[0]), overlap_of(a.window))) {}

  void* take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const {
    return take_input_partials(a, work_, arena);
  }

  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    const DepthwiseInputGradientParameters p = input_parameters_of(a, work_, join_columns_, take_partials(a, arena));
    launch(p, execution);
    if (!a.sums) return;
    launch_gradient_sums(kDepthwiseBackward, p.partials, work_.splits, a.sums, a.x, execution.stream);
  }
};

class WeightPass : Pass {
 public:
  static constexpr Direction kDirection = Direction::grad_weight;

  WeightPass(const DepthwiseBackwardArguments& a, const Config& config)
      : Pass(a, text_of(a, kDirection, config), weight_grid_of(a, overlap_of(a.window))) {}

  void* take_partials(const DepthwiseBackwardArguments& a, Arena& arena) const {
    return take_weight_partials(a, work_, arena);
  }

  void run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
    Arena arena(execution.workspace);
    const DepthwiseWeightGradientParameters p = weight_parameters_of(a, work_, 1, take_partials(a, arena));
    launch(p, execution);
    if (p.partials == nullptr) return;
    launch_sum_of_weight_gradient(a, p.shape, p.partials, work_.splits, execution);
  }
};

template <Direction kDirection>
Configs configs(const DepthwiseBackwardArguments& a) {
  return generated::depthwise_gradient_configs(a, target_of(a, kDirection), kDirection);
}

template <Direction kDirection>
std::string unsupported(const DepthwiseBackwardArguments& a) {
  if (std::string elsewhere = why_not_on_gpu(a); !elsewhere.empty()) return elsewhere;
  if (kDirection == Direction::grad_input && !a.grad_x) return "grad_x is not wanted";
  if (kDirection == Direction::grad_weight && !a.grad_weight && !a.grad_bias) {
    return "neither grad_weight nor grad_bias is wanted";
  }
  return why_not_generated(generated::why_no_depthwise_gradient_text(a), configs<kDirection>, a);
}

template <class OfDirection>
Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  return plan_of_pass(a, OfDirection(a, config));
}

template <Direction kDirection>
std::string source(const DepthwiseBackwardArguments& a, const Config& config) {
  return text_of(a, kDirection, config).text;
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_generated_input() {
  constexpr Direction kDirection = InputPass::kDirection;
  return {"generated", unsupported<kDirection>, configs<kDirection>, plan<InputPass>, source<kDirection>};
}
Kernel<DepthwiseBackwardArguments> depthwise_generated_weight() {
  constexpr Direction kDirection = WeightPass::kDirection;
  return {"generated", unsupported<kDirection>, configs<kDirection>, plan<WeightPass>, source<kDirection>};
}

}  // namespace fusedsc::gpu
