#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass_kernel.h"
#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/hopper/pointwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr int kThreads = 256, kBlocks = 4;  ///< of a block; of a multiprocessor

template <class T, bool kHasOther>
FUSEDSC_KERNEL(kThreads, kBlocks)
prologue_pass_kernel(ProloguePassParameters p) {
  apply_prologue_pass<T, kHasOther>(p);
}

template <bool kHasOther>
void launch_prologue_pass(ProloguePassParameters p, const ConstTensorView& x, void* stream) {
  p.pixels = static_cast<int>(x.sizes[0] * x.sizes[2] * x.sizes[3]);
  p.runs = static_cast<int>(x.sizes[1] * static_cast<std::int64_t>(size_of(x.dtype)) / 16);
  p.rows = std::max(1, kThreads / p.runs);
  const std::int64_t blocks =
      std::min<std::int64_t>((p.pixels + p.rows - 1) / p.rows, std::int64_t{kBlocks} * multiprocessors());
  const auto kernel = x.dtype == DataType::float16    ? prologue_pass_kernel<Float16, kHasOther>
                      : x.dtype == DataType::bfloat16 ? prologue_pass_kernel<BFloat16, kHasOther>
                                                      : prologue_pass_kernel<float, kHasOther>;
  launch_following("pointwise_conv2d_backward", kernel, blocks, p.rows * p.runs, stream, p);
}

}  // namespace

void launch_gradient_prologue(const PointwiseBackwardArguments& a, void* to, void* stream) {
  const GradientPrologue& gradient = a.gradient_prologue;
  const PointwiseMatrix grad_y = activation_matrix(a.grad_y, 1, true),
                        output = activation_matrix(gradient.output, 1, true);
  ProloguePassParameters prologue;
  prologue.x = grad_y.data;
  prologue.other = output.data;
  prologue.to = to;
  prologue.x_row = grad_y.first;
  prologue.other_row = output.first;
  prologue.scale = static_cast<const float*>(gradient.grad_scale.data);
  prologue.other_scale = static_cast<const float*>(gradient.output_scale.data);
  prologue.shift = static_cast<const float*>(gradient.offset.data);
  launch_prologue_pass<true>(prologue, a.grad_y, stream);
}

void launch_activation_prologue(const PointwiseBackwardArguments& a, void* to, void* stream) {
  const PointwiseMatrix x = activation_matrix(a.x, 1, true);
  ProloguePassParameters prologue;
  prologue.x = x.data;
  prologue.to = to;
  prologue.x_row = x.first;
  prologue.scale = static_cast<const float*>(a.prologue.scale.data);
  prologue.shift = static_cast<const float*>(a.prologue.shift.data);
  prologue.activation = a.prologue.activation;
  launch_prologue_pass<false>(prologue, a.x, stream);
}

std::string why_not_prologue_pass(const PointwiseBackwardArguments& a) {
  const std::int64_t outputs = a.grad_y.sizes[1], channels = a.x.sizes[1];
  std::string reason =
      why_not_hopper(a.x.dtype, a.x.device, a.groups, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3], a.allow_tf32);
  if (!reason.empty()) return reason;
  if (!a.gradient_prologue || !a.grad_x) return "it is for a gradient prologue and the input gradient";
  const bool are_many = a.x.dtype == DataType::float32 ? outputs >= 96 && channels >= 448
                                                       : a.grad_weight && outputs >= 320 && channels >= 128;
  if (!are_many) return "there are few outputs or channels";
  if (outputs > most_prologue_pass_outputs(a.x.dtype)) return "there are more outputs than it takes";
  const auto suits = [&](const ConstTensorView& view) {
    return suits_tma(activation_matrix(view, 1, true), view.dtype);
  };
  return suits(a.grad_y) && suits(a.gradient_prologue.output) ? "" : kUnsuited;
}

Plan<PointwiseBackwardArguments> plan_behind_prologue_pass(const PointwiseBackwardArguments& a, PlanGradients plan_rest,
                                                           int threads) {
  const auto with_gradient = [](PointwiseBackwardArguments like, const void* gradient) {
    const Sizes& sizes = like.grad_y.sizes;
    like.grad_y =
        ConstTensorView(gradient, like.grad_y.dtype, sizes, dense_strides(sizes, Layout::channels_last), Device::gpu);
    like.gradient_prologue = {};
    return like;
  };
  const auto take = [](Arena& arena, const PointwiseBackwardArguments& like) {
    return arena.take<char>(like.grad_y.elements() * static_cast<std::int64_t>(size_of(like.grad_y.dtype)));
  };
  const Plan<PointwiseBackwardArguments> rest = plan_rest(with_gradient(a, a.grad_y.data), threads);
  Arena arena(nullptr);
  take(arena, a);
  return {arena.used() + rest.workspace_bytes,
          [=, run = rest.unchecked_run](const PointwiseBackwardArguments& like, const Execution& execution) {
            Arena taken(execution.workspace);
            void* gradient = take(taken, like);
            launch_gradient_prologue(like, gradient, execution.stream);
            run(with_gradient(like, gradient), rest_of(execution, taken));
          }};
}

}  // namespace gpu::hopper

Implementation<PointwiseBackwardArguments> pointwise_backward_hopper_prologue_pass() {
  return {"hopper_prologue_pass", gpu::hopper::why_not_prologue_pass,
          [](const PointwiseBackwardArguments& a, int threads) {
            return gpu::hopper::plan_behind_prologue_pass(a, plan_behind_prologue, threads);
          }};
}

}  // namespace fusedsc
#endif
