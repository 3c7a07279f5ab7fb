#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_seam.h"
#include "fusedsc/backward/pointwise/hopper/pointwise_hopper_seam_kernel.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kThreads = 256, kBlocks = 4;  ///< of a block; of a multiprocessor

template <class T, bool kHasOther>
FUSEDSC_KERNEL(kThreads, kBlocks)
seam_kernel(SeamParameters p) {
  apply_seam<T, kHasOther>(p);
}

template <bool kHasOther>
void launch_seam(SeamParameters p, const ConstTensorView& x, void* stream) {
  p.pixels = static_cast<int>(x.sizes[0] * x.sizes[2] * x.sizes[3]);
  p.runs = static_cast<int>(x.sizes[1] * static_cast<std::int64_t>(size_of(x.dtype)) / 16);
  p.rows = std::max(1, kThreads / p.runs);
  const std::int64_t blocks =
      std::min<std::int64_t>((p.pixels + p.rows - 1) / p.rows, std::int64_t{kBlocks} * multiprocessors());
  const auto kernel = x.dtype == DataType::float16    ? seam_kernel<Float16, kHasOther>
                      : x.dtype == DataType::bfloat16 ? seam_kernel<BFloat16, kHasOther>
                                                      : seam_kernel<float, kHasOther>;
  launch_following("pointwise_conv2d_backward", kernel, blocks, p.rows * p.runs, stream, p);
}

}  // namespace

void launch_gradient_seam(const PointwiseBackwardArguments& a, void* to, void* stream) {
  const GradientPrologue& gradient = a.gradient_prologue;
  const PointwiseMatrix grad_y = activation_matrix(a.grad_y, 1, true),
                        output = activation_matrix(gradient.output, 1, true);
  SeamParameters seam;
  seam.x = grad_y.data;
  seam.other = output.data;
  seam.to = to;
  seam.x_row = grad_y.first;
  seam.other_row = output.first;
  seam.scale = static_cast<const float*>(gradient.grad_scale.data);
  seam.other_scale = static_cast<const float*>(gradient.output_scale.data);
  seam.shift = static_cast<const float*>(gradient.offset.data);
  launch_seam<true>(seam, a.grad_y, stream);
}

void launch_activation_seam(const PointwiseBackwardArguments& a, void* to, void* stream) {
  const PointwiseMatrix x = activation_matrix(a.x, 1, true);
  SeamParameters seam;
  seam.x = x.data;
  seam.to = to;
  seam.x_row = x.first;
  seam.scale = static_cast<const float*>(a.prologue.scale.data);
  seam.shift = static_cast<const float*>(a.prologue.shift.data);
  seam.activation = a.prologue.activation;
  launch_seam<false>(seam, a.x, stream);
}

}  // namespace fusedsc::gpu::hopper
#endif
