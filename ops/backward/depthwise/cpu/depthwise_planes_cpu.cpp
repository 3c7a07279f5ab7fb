#include "fusedsc/backward/depthwise/cpu/depthwise_planes_cpu.h"

#include "fusedsc/common/cpu/targets.h"
#include "fusedsc/forward/depthwise/cpu/plane_tasks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fusedsc/backward/depthwise/cpu/depthwise_planes_cpu.cpp"
#include "hwy/foreach_target.h"

#include "fusedsc/backward/depthwise/cpu/depthwise_backward_planes-inl.h"
#include "fusedsc/runtime/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fusedsc {
namespace HWY_NAMESPACE {

Plan<DepthwiseBackwardArguments> depthwise_backward_planes_plan(const DepthwiseBackwardArguments& arguments,
                                                                int threads) {
  return plan_of_pass_by_type<DepthwiseBackwardPlanes>(arguments, threads);
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(depthwise_backward_planes_plan);

std::string why_not_planes(const DepthwiseBackwardArguments& arguments) {
  const DepthwiseBackwardArguments& a = arguments;
  std::string reason = needs_device(Device::cpu, a.x.device);
  if (reason.empty() && a.weight.sizes[0] != a.x.sizes[1]) reason = "each channel is repeated (a channel multiplier)";
  if (reason.empty()) reason = needs_planes(a.window, {{"x", a.x}, {"grad_y", a.grad_y}});
  const NamedTensor others[] = {
      {"grad_x", a.grad_x}, {"grad_add", a.grad_add}, {"gradient_prologue.output", a.gradient_prologue.output}};
  for (const NamedTensor& other : others) {
    if (reason.empty() && other.view) reason = needs_planes(a.window, {other});
  }
  return reason;
}

}  // namespace

Implementation<DepthwiseBackwardArguments> depthwise_backward_planes_cpu() {
  return {
      .name = "cpu_planes",
      .why_not = why_not_planes,
      .plan = [](const DepthwiseBackwardArguments& arguments,
                 int threads) { return HWY_DYNAMIC_DISPATCH(depthwise_backward_planes_plan)(arguments, threads); },
  };
}

}  // namespace fusedsc
#endif
