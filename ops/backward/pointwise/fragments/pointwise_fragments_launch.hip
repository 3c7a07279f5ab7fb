// "gpu_fragments": what is wanted of tensors with neighbouring channels, by products of 32 threads.
#include <algorithm>

#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"

namespace fusedsc {
namespace gpu {
namespace {

using BackwardPlan = Plan<PointwiseBackwardArguments>;

bool wants_weight(const PointwiseBackwardArguments& a) { return a.grad_weight || a.grad_bias; }

std::string unsupported(const PointwiseBackwardArguments& a) {
  if (const std::string why = needs_device(Device::gpu, a.x.device); !why.empty()) return why;
  if (a.windows.channels > 0) return "the weight has channel windows";
  if (const std::string why = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes); !why.empty()) return why;
  if (std::string why = why_no_whole_fragments(a); !why.empty()) {
    if (size_of(a.x.dtype) != 2) return why;
    why = why_no_packed_fragments({a.x, a.grad_y, a.gradient_prologue.output, a.grad_add, a.grad_x},
                                  a.grad_x ? ConstTensorView(a.weight) : ConstTensorView(), a.groups);
    if (!why.empty()) return why;
  }
  if (a.grad_x && pointwise_input_fragments(a).empty()) return "the weight and rows do not fit shared memory";
  if (!a.grad_x && wants_weight(a) && pointwise_weight_fragments(a).empty()) return "rows do not fit shared memory";
  return {};
}

/// Of two gradients the input's has the tile that costs the least, and the weight's whichever kernel is best for it.
/// None may be wanted, too.
Configs configs(const PointwiseBackwardArguments& a) {
  if (static_cast<bool>(a.grad_x) == wants_weight(a)) return {Config()};
  return a.grad_x ? pointwise_input_fragments(a) : pointwise_weight_fragments(a);
}

/// One after the other, in the same workspace.
BackwardPlan plan(const PointwiseBackwardArguments& a, const Config& config, int threads) {
  if (a.grad_x && !wants_weight(a)) return plan_pointwise_input_fragments(a, config);
  if (!a.grad_x && wants_weight(a)) return plan_pointwise_weight_fragments(a, config);
  tuning::check_no_config("gpu_fragments of both gradients or none", config);
  BackwardPlan input, weight;
  if (a.grad_x) {
    input = plan_pointwise_input_fragments(a, cheapest_pointwise_input_fragments(a));
    weight = plan_pointwise_weight_gradient(without_input(a), threads);
  }
  return {std::max(input.workspace_bytes, weight.workspace_bytes),
          [input = std::move(input.unchecked_run), weight = std::move(weight.unchecked_run)](
              const PointwiseBackwardArguments& like, const Execution& execution) {
            if (input) input(like, execution);
            if (weight) weight(without_input(like), execution);
          }};
}

}  // namespace

std::string why_no_whole_fragments(const PointwiseBackwardArguments& a) {
  const std::string why =
      why_no_fragments({a.x, a.grad_y, a.gradient_prologue.output, a.grad_add, a.grad_x}, a.groups, a.allow_tf32);
  return why.empty() && a.grad_x ? why_no_fragments_of(a.weight) : why;
}

}  // namespace gpu

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_fragments() {
  return {"gpu_fragments", gpu::unsupported, gpu::configs, gpu::plan};
}

tuning::Config pointwise_backward_fragments_prior(const PointwiseBackwardArguments& a) {
  if (static_cast<bool>(a.grad_x) == gpu::wants_weight(a)) return {};
  return a.grad_x ? gpu::cheapest_pointwise_input_fragments(a) : gpu::cheapest_pointwise_weight_fragments(a);
}

}  // namespace fusedsc
