#include <algorithm>
#include <utility>
#include <vector>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/rows/depthwise_passes.h"
#include "fusedsc/backward/members.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"

namespace fusedsc::gpu {

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

std::string why_not_on_gpu(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_gpu(a.x.sizes, a.grad_y.sizes, a.window);
}

namespace {

using BackwardKernel = Kernel<DepthwiseBackwardArguments>;
using BackwardPlan = Plan<DepthwiseBackwardArguments>;

/// The entry of a forward kernel for the input's gradient.
template <Kernel<DepthwiseArguments> (*kKernel)()>
BackwardKernel forward(const char* name) {
  return {.name = name,
          .unsupported = [](const DepthwiseBackwardArguments& a) -> std::string {
            const std::string elsewhere = why_not_on_gpu(a);
            if (!elsewhere.empty()) return elsewhere;
            if (!a.grad_x) return "grad_x is not wanted";
            const DepthwiseArguments forward = as_forward(a);
            if (forward.x) return kKernel().unsupported(forward);
            return "the gradient is no forward pass: it has a prologue, a stride, a channel multiplier or more padding "
                   "than a window reaches";
          },
          .configs = [](const DepthwiseBackwardArguments& a) { return kKernel().configs(as_forward(a)); },
          .plan = [](const DepthwiseBackwardArguments& a, const Config& config, int threads) -> BackwardPlan {
            Plan<DepthwiseArguments> plan = kKernel().plan(as_forward(a), config, threads);
            return {plan.workspace_bytes, [run = std::move(plan.unchecked_run)](const DepthwiseBackwardArguments& like,
                                                                                const Execution& execution) {
                      run(as_forward(like), execution);
                    }};
          }};
}

/// One after the other, in the same workspace.
BackwardPlan plan_separate(const DepthwiseBackwardArguments& a, const Config& /*config*/, int threads) {
  BackwardPlan input, weight;
  if (a.grad_x) input = tuning::plan_chosen(depthwise_input_role(), a, threads);
  if (a.grad_weight || a.grad_bias) weight = tuning::plan_chosen(depthwise_weight_role(), a, threads);
  return {std::max(input.workspace_bytes, weight.workspace_bytes),
          [input = std::move(input.unchecked_run), weight = std::move(weight.unchecked_run)](
              const DepthwiseBackwardArguments& like, const Execution& execution) {
            if (input) input(like, execution);
            if (weight) weight(like, execution);
          }};
}

Configs nothing_to_choose(const DepthwiseBackwardArguments&) { return {Config()}; }

template <std::span<const BackwardKernel> (*kKernels)()>
std::vector<const char*> names() {
  return tuning::names_of(kKernels());
}

const tuning::RoleRegistration kInput("depthwise_conv2d.grad_input", names<depthwise_input_kernels>);
const tuning::RoleRegistration kWeight("depthwise_conv2d.grad_weight", names<depthwise_weight_kernels>);

}  // namespace

BackwardKernel depthwise_separate() { return {"gpu_separate", why_not_on_gpu, nothing_to_choose, plan_separate}; }

std::span<const BackwardKernel> depthwise_input_kernels() {
  static const BackwardKernel kernels[] = {
      depthwise_direct_input(),
#ifdef FUSEDSC_HOPPER
      hopper::depthwise_planes_input(),
      hopper::depthwise_patches_input(),
#endif
      depthwise_rows_input(),
      depthwise_windows_input(),
      depthwise_taps_input(),
      forward<depthwise_direct>("forward_gpu_direct"),
#ifdef FUSEDSC_HOPPER
      forward<hopper::depthwise_planes>("forward_hopper_planes"),
      forward<hopper::depthwise_columns>("forward_hopper_columns"),
      forward<hopper::depthwise_tiles>("forward_hopper_tiles"),
      forward<hopper::depthwise_patches>("forward_hopper_patches"),
#endif
      forward<depthwise_matrix>("forward_gpu_matrix"),
      forward<depthwise_rows>("forward_gpu_rows"),
      forward<depthwise_windows>("forward_gpu_windows"),
      forward<depthwise_taps>("forward_gpu_taps"),
      depthwise_generated_input(),
  };
  return kernels;
}

std::span<const BackwardKernel> depthwise_weight_kernels() {
  static const BackwardKernel kernels[] = {
      depthwise_direct_weight(),
#ifdef FUSEDSC_HOPPER
      hopper::depthwise_planes_weight(), hopper::depthwise_columns_weight(), hopper::depthwise_patches_weight(),
      hopper::depthwise_tiles_weight(),
#endif
      depthwise_rows_weight(),           depthwise_windows_weight(),         depthwise_taps_weight(),
      depthwise_generated_weight(),
  };
  return kernels;
}

const tuning::Role<DepthwiseBackwardArguments>& depthwise_input_role() {
  static const tuning::Role<DepthwiseBackwardArguments> role{"depthwise_conv2d.grad_input", depthwise_input_kernels,
                                                             depthwise_input_prior, depthwise_input_prior_config};
  return role;
}

const tuning::Role<DepthwiseBackwardArguments>& depthwise_weight_role() {
  static const tuning::Role<DepthwiseBackwardArguments> role{"depthwise_conv2d.grad_weight", depthwise_weight_kernels,
                                                             depthwise_weight_prior, depthwise_weight_prior_config};
  return role;
}

}  // namespace fusedsc::gpu
