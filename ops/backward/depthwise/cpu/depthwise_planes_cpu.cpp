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

PlaneWork depthwise_backward_planes_work(const DepthwiseBackwardArguments& arguments) {
  return arguments.x.dtype == DataType::float64 ? work_of<double>(arguments) : work_of<float>(arguments);
}
Config depthwise_backward_planes_prior(const DepthwiseBackwardArguments& arguments) {
  return depthwise_backward_planes_work(arguments).prior().config();
}
Configs depthwise_backward_planes_all(const DepthwiseBackwardArguments& arguments) {
  return depthwise_backward_planes_work(arguments).configs();
}

Plan<DepthwiseBackwardArguments> depthwise_backward_planes_plan(const DepthwiseBackwardArguments& arguments,
                                                                const Config& config, int threads) {
  return plan_of_pass_by_type<DepthwiseBackwardPlanes>(arguments, threads, PlaneTiling(config));
}

}  // namespace HWY_NAMESPACE
}  // namespace fusedsc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fusedsc {
namespace {

HWY_EXPORT(depthwise_backward_planes_prior);
HWY_EXPORT(depthwise_backward_planes_all);
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

tuning::Configs configs(const DepthwiseBackwardArguments& a) {
  return HWY_DYNAMIC_DISPATCH(depthwise_backward_planes_all)(a);
}

}  // namespace

tuning::Config depthwise_backward_planes_cpu_prior(const DepthwiseBackwardArguments& a) {
  return HWY_DYNAMIC_DISPATCH(depthwise_backward_planes_prior)(a);
}

tuning::Kernel<DepthwiseBackwardArguments> depthwise_backward_planes_cpu() {
  return {
      .name = "cpu_planes",
      .unsupported = why_not_planes,
      .configs = configs,
      .plan =
          [](const DepthwiseBackwardArguments& a, const tuning::Config& config, int threads) {
            tuning::check_listed("cpu_planes", a, config, depthwise_backward_planes_cpu_prior(a), configs);
            return HWY_DYNAMIC_DISPATCH(depthwise_backward_planes_plan)(a, config, threads);
          },
  };
}

}  // namespace fusedsc
#endif
