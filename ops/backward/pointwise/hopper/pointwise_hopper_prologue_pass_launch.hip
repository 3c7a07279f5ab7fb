#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_prologue_pass_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

namespace fusedsc::gpu::hopper {
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

}  // namespace fusedsc::gpu::hopper
#endif
