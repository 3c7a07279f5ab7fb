#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/backward/pointwise_hopper_seam.h"
#include "fusedsc/backward/pointwise_hopper_seam_kernel.h"
#include "fusedsc/common/gpu/pointwise_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr int kThreads = 256, kBlocks = 3;  ///< of a block; of a multiprocessor

template <class T>
FUSEDSC_KERNEL(kThreads, kBlocks + 1)
seam_kernel(GradientSeamParameters p) {
  apply_gradient_seam<T>(p);
}

}  // namespace

void launch_gradient_seam(const PointwiseBackwardArguments& a, void* to, void* stream) {
  const GradientPrologue& gradient = a.gradient_prologue;
  const PointwiseMatrix grad_y = activation_matrix(a.grad_y, 1, true),
                        output = activation_matrix(gradient.output, 1, true);
  GradientSeamParameters seam;
  seam.grad_y = grad_y.data;
  seam.output = output.data;
  seam.to = to;
  seam.grad_y_row = grad_y.first;
  seam.output_row = output.first;
  seam.grad_scale = static_cast<const float*>(gradient.grad_scale.data);
  seam.output_scale = static_cast<const float*>(gradient.output_scale.data);
  seam.offset = static_cast<const float*>(gradient.offset.data);
  seam.pixels = static_cast<int>(a.grad_y.sizes[0] * a.grad_y.sizes[2] * a.grad_y.sizes[3]);
  seam.runs = static_cast<int>(a.grad_y.sizes[1] * static_cast<std::int64_t>(size_of(a.grad_y.dtype)) / 16);
  seam.rows = std::max(1, kThreads / seam.runs);
  const std::int64_t blocks =
      std::min<std::int64_t>((seam.pixels + seam.rows - 1) / seam.rows, std::int64_t{kBlocks} * multiprocessors());
  const auto kernel = a.grad_y.dtype == DataType::float16    ? seam_kernel<Float16>
                      : a.grad_y.dtype == DataType::bfloat16 ? seam_kernel<BFloat16>
                                                             : seam_kernel<float>;
  launch_following("pointwise_conv2d_backward", kernel, blocks, seam.rows * seam.runs, stream, seam);
}

}  // namespace fusedsc::gpu::hopper
#endif
