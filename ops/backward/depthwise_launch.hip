#include "fusedsc/backward/depthwise_direct_launch.h"
#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/backward/depthwise_passes.h"
#include "fusedsc/backward/depthwise_windows_launch.h"
#include "fusedsc/forward/depthwise_direct_launch.h"
#include "fusedsc/forward/depthwise_gpu.h"
#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise_columns_launch.h"
#include "fusedsc/backward/depthwise_hopper_input_plan.h"
#include "fusedsc/backward/depthwise_hopper_patches_plan.h"
#include "fusedsc/backward/depthwise_hopper_weight_plan.h"
#include "fusedsc/backward/depthwise_planes_launch.h"
#endif

namespace fusedsc {
namespace gpu {
namespace {

/// The input gradient as a forward pass over grad_y, with the weight turned around; or without x where it is none.
DepthwiseArguments as_forward(const DepthwiseBackwardArguments& a) {
  DepthwiseArguments forward;
  const Window& window = a.window;
  const auto reach = [&](int axis) { return (window.kernel[axis] - 1) * window.dilation[axis]; };
  const bool is_one = window.stride == std::array<std::int64_t, 2>{1, 1} && multiplier_of(a) == 1 && !a.prologue &&
                      !a.gradient_prologue;
  if (!is_one || window.padding.top > reach(0) || window.padding.left > reach(1)) return forward;
  forward.x = a.grad_y;
  forward.weight = a.weight;
  for (const int axis : {2, 3}) {
    const std::int64_t last = a.weight.sizes[axis] - 1;
    forward.weight.data = static_cast<const char*>(forward.weight.data) +
                          last * a.weight.strides[axis] * static_cast<std::int64_t>(size_of(a.weight.dtype));
    forward.weight.strides[axis] = -a.weight.strides[axis];
  }
  forward.window = window;
  forward.window.padding = {.left = reach(1) - window.padding.left, .top = reach(0) - window.padding.top};
  forward.epilogue.residual = a.grad_add;
  forward.y = a.grad_x;
  return forward;
}

using BackwardPlan = Plan<DepthwiseBackwardArguments>;

/// By rows in registers where the pass has a kernel that knows the window, else `windows`' plan if there is one.
template <class Pass>
BackwardPlan plan_pass(const DepthwiseBackwardArguments& a,
                       std::optional<BackwardPlan> (*windows)(const DepthwiseBackwardArguments&)) {
  const Pass pass(a);
  if (!pass.knows_window()) {
    if (std::optional<BackwardPlan> plan = windows(a)) return *std::move(plan);
  }
  return {workspace_bytes_of(pass, a),
          [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

BackwardPlan plan_input(const DepthwiseBackwardArguments& a, int threads) {
  if (std::optional<BackwardPlan> direct = plan_depthwise_direct_input(a)) return *std::move(direct);
  const DepthwiseArguments forward = as_forward(a);
#ifdef FUSEDSC_HOPPER
  if (!forward.x || !suits_depthwise_direct(forward)) {
    if (std::optional<BackwardPlan> planes = hopper::plan_depthwise_planes_input(a)) return *std::move(planes);
  }
  if (hopper::why_no_input_patches(a).empty()) {
    const auto pass = hopper::DepthwiseInputPatchesPass::of(a);
    return {0,
            [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
  }
#endif
  if (!forward.x) return plan_pass<DepthwiseInputPass>(a, plan_depthwise_windows_input);
  Plan<DepthwiseArguments> plan = depthwise_of_gpu(forward).plan_for(forward, threads);
  return {plan.workspace_bytes,
          [run = std::move(plan.unchecked_run)](const DepthwiseBackwardArguments& like, const Execution& execution) {
            run(as_forward(like), execution);
          }};
}

BackwardPlan plan_weight(const DepthwiseBackwardArguments& a) {
  if (std::optional<BackwardPlan> direct = plan_depthwise_direct_weight(a)) return *std::move(direct);
#ifdef FUSEDSC_HOPPER
  if (std::optional<BackwardPlan> planes = hopper::plan_depthwise_planes_weight(a)) return *std::move(planes);
  if (std::optional<BackwardPlan> columns = hopper::plan_depthwise_columns_weight(a)) return *std::move(columns);
  if (hopper::why_no_weight_patches(a).empty()) {
    const auto pass = hopper::DepthwiseWeightPatchesPass::of(a);
    return {pass.workspace_bytes(),
            [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
  }
  if (hopper::why_no_weight_tiles(a).empty()) {
    const auto pass = hopper::DepthwiseWeightTilesPass::of(a);
    return {pass.workspace_bytes(),
            [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
  }
#endif
  return plan_pass<DepthwiseWeightPass>(a, plan_depthwise_windows_weight);
}

/// At once where there is a kernel for that, else one after the other, in the same workspace.
BackwardPlan plan_backward(const DepthwiseBackwardArguments& a, int threads) {
#ifdef FUSEDSC_HOPPER
  if (std::optional<BackwardPlan> planes = hopper::plan_depthwise_planes_gradients(a)) return *std::move(planes);
#endif
  BackwardPlan input, weight;
  if (a.grad_x) input = plan_input(a, threads);
  if (a.grad_weight || a.grad_bias) weight = plan_weight(a);
  return {std::max(input.workspace_bytes, weight.workspace_bytes),
          [input = std::move(input.unchecked_run), weight = std::move(weight.unchecked_run)](
              const DepthwiseBackwardArguments& like, const Execution& execution) {
            if (input) input(like, execution);
            if (weight) weight(like, execution);
          }};
}

std::string why_not(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_gpu(a.x.sizes, a.grad_y.sizes, a.window);
}

}  // namespace
}  // namespace gpu

Implementation<DepthwiseBackwardArguments> depthwise_backward_gpu() {
  return {"gpu", gpu::why_not, gpu::plan_backward};
}

}  // namespace fusedsc
