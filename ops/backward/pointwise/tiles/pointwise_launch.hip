// "gpu_tiles": what is wanted by the kernels for any GPU.
#include <algorithm>

#include "fusedsc/backward/pointwise/tiles/pointwise_tiles.h"

namespace fusedsc {
namespace gpu {
namespace {

using BackwardPlan = Plan<PointwiseBackwardArguments>;

bool wants_weight(const PointwiseBackwardArguments& a) { return a.grad_weight || a.grad_bias; }

std::string unsupported(const PointwiseBackwardArguments& a) {
  const std::string elsewhere = needs_device(Device::gpu, a.x.device);
  return !elsewhere.empty() ? elsewhere : too_large_for_pointwise(a.x.sizes, a.grad_y.sizes);
}

/// Of two gradients each has the tile that costs the least: "gpu_separate" is there to choose for each. None may be
/// wanted, too.
Configs configs(const PointwiseBackwardArguments& a) {
  if (static_cast<bool>(a.grad_x) == wants_weight(a)) return {Config()};
  return a.grad_x ? pointwise_input_tiles(a) : pointwise_weight_tiles(a);
}

/// One after the other, in the same workspace.
BackwardPlan plan(const PointwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  if (a.grad_x && !wants_weight(a)) return plan_pointwise_input_tiles(a, config);
  if (!a.grad_x && wants_weight(a)) return plan_pointwise_weight_tiles(a, config);
  tuning::check_no_config("gpu_tiles of both gradients or none", config);
  BackwardPlan input, weight;
  if (a.grad_x) {
    input = plan_pointwise_input_tiles(a, cheapest_pointwise_input_tile(a));
    weight = plan_pointwise_weight_tiles(a, cheapest_pointwise_weight_tile(a));
  }
  return {std::max(input.workspace_bytes, weight.workspace_bytes),
          [input = std::move(input.unchecked_run), weight = std::move(weight.unchecked_run)](
              const PointwiseBackwardArguments& like, const Execution& execution) {
            if (input) input(like, execution);
            if (weight) weight(like, execution);
          }};
}

}  // namespace
}  // namespace gpu

tuning::Kernel<PointwiseBackwardArguments> pointwise_backward_tiles() {
  return {"gpu_tiles", gpu::unsupported, gpu::configs, gpu::plan};
}

tuning::Config pointwise_backward_tiles_prior(const PointwiseBackwardArguments& a) {
  if (static_cast<bool>(a.grad_x) == gpu::wants_weight(a)) return {};
  return a.grad_x ? gpu::cheapest_pointwise_input_tile(a) : gpu::cheapest_pointwise_weight_tile(a);
}

}  // namespace fusedsc
