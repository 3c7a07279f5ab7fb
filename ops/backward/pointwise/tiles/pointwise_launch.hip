// "gpu_tiles": one gradient by the kernels for any GPU.
#include "fusedsc/backward/pointwise/tiles/pointwise_tiles.h"

namespace fusedsc {
namespace gpu {
namespace {

using BackwardPlan = Plan<PointwiseBackwardArguments>;

std::string unsupported(const PointwiseBackwardArguments& a) {
  std::string reason = needs_device(Device::gpu, a.x.device);
  if (reason.empty()) reason = why_not_one_gradient(a);
  return !reason.empty() ? reason : too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
}

Configs configs(const PointwiseBackwardArguments& a) {
  return a.grad_x ? pointwise_input_tiles(a) : pointwise_weight_tiles(a);
}

Plan<PointwiseBackwardArguments> plan(const PointwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  return a.grad_x ? plan_pointwise_input_tiles(a, config) : plan_pointwise_weight_tiles(a, config);
}

}  // namespace
}  // namespace gpu

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_tiles() {
  return {"gpu_tiles", gpu::unsupported, gpu::configs, gpu::plan};
}

tuning::Config pointwise_backward_tiles_prior(const PointwiseBackwardArguments& a) {
  return a.grad_x ? gpu::cheapest_pointwise_input_tile(a) : gpu::cheapest_pointwise_weight_tile(a);
}

}  // namespace fusedsc
