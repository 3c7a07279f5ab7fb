// "gpu_fragments": one gradient of tensors with neighbouring channels, by products of 32 threads.
#include "fusedsc/backward/pointwise/fragments/pointwise_fragments.h"

namespace fusedsc {
namespace gpu {
namespace {

std::string unsupported(const PointwiseBackwardArguments& a) {
  if (const std::string why = needs_device(Device::gpu, a.x.device); !why.empty()) return why;
  if (std::string why = why_not_one_gradient(a); !why.empty()) return why;
  if (a.windows.channels > 0) return "the weight has channel windows";
  if (const std::string why = too_large_for_pointwise(a.x.sizes, a.grad_y.sizes); !why.empty()) return why;
  if (std::string why = why_no_whole_fragments(a); !why.empty()) {
    if (size_of(a.x.dtype) != 2) return why;
    why = why_no_packed_fragments({a.x, a.grad_y, a.gradient_prologue.output, a.grad_add, a.grad_x},
                                  a.grad_x ? ConstTensorView(a.weight) : ConstTensorView(), a.groups);
    if (!why.empty()) return why;
  }
  if (a.grad_x && pointwise_input_fragments(a).empty()) return "the weight and rows do not fit shared memory";
  if (!a.grad_x && pointwise_weight_fragments(a).empty()) return "rows do not fit shared memory";
  return {};
}

Configs configs(const PointwiseBackwardArguments& a) {
  return a.grad_x ? pointwise_input_fragments(a) : pointwise_weight_fragments(a);
}

Plan<PointwiseBackwardArguments> plan(const PointwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  return a.grad_x ? plan_pointwise_input_fragments(a, config) : plan_pointwise_weight_fragments(a, config);
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
  return a.grad_x ? gpu::cheapest_pointwise_input_fragments(a) : gpu::cheapest_pointwise_weight_fragments(a);
}

}  // namespace fusedsc
