#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise_hopper_input_kernel.h"
#include "fusedsc/backward/depthwise_hopper_input_plan.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/depthwise_hopper_patches_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
constexpr int kThreads = 512;  ///< the most that a block may have

template <class T, int kKernel, bool kInSegments>
FUSEDSC_HOPPER_KERNEL(kThreads)
input_patches_kernel(const FUSEDSC_GRID_CONSTANT DepthwisePatchesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwiseInputPatches<T, kKernel, kInSegments>::run(p);
#endif
}

template <class T>
auto kernel_of(std::int64_t kernel, bool in_segments) {
  if (in_segments) return kernel == 3 ? input_patches_kernel<T, 3, true> : input_patches_kernel<T, 5, true>;
  return kernel == 3 ? input_patches_kernel<T, 3, false> : input_patches_kernel<T, 5, false>;
}

/// What measured best on an H200 (docs/performance_gpu_depthwise.md).
DepthwisePatching choose_patching(const DepthwiseBackwardArguments& a) {
  const std::int64_t width = a.x.sizes[3];
  const int runs = int_divide_up(a.x.sizes[1], 8);
  if (width <= 16) return runs % 12 == 0 ? DepthwisePatching{12, 4, 2, 1, 4} : DepthwisePatching{4, 4, 2, 1, 3};
  if (width <= 32) return {4, 4, 3, a.x.sizes[0] >= 8 ? 2 : 1, 4};
  if (runs < 4 && width <= 64 && has_dense_rows(a.grad_y) && has_dense_rows(ConstTensorView(a.grad_x))) {
    return {.runs = runs, .rows = 2, .stages = 3, .in_segments = true, .grain = 7};
  }
  if (runs < 4) return {runs, 0, 1, 2, 4};
  if (runs == 9) return {9, 0, 3, 1, 4};
  if (runs > 4 && runs < 8) return {runs, 8, 2, 1, 4};
  if (runs == 12) return {12, 4, 2, 1, 4};
  return a.x.sizes[0] >= 12 ? DepthwisePatching{4, 4, 1, 3, 4} : DepthwisePatching{4, 4, 1, 1, 3};
}

}  // namespace

DepthwiseInputPatchesPass DepthwiseInputPatchesPass::of(const DepthwiseBackwardArguments& a) {
  const DepthwiseInputPatchesPass pass(a, choose_patching(a));
  return pass.fits() ? pass : DepthwiseInputPatchesPass(a, {4, 4, 1, 1, 2});
}

DepthwiseInputPatchesPass::DepthwiseInputPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& t)
    : kernel_(a.x.dtype == DataType::float16 ? kernel_of<Float16>(a.window.kernel[0], t.in_segments)
                                             : kernel_of<BFloat16>(a.window.kernel[0], t.in_segments)) {
  static_cast<DepthwiseTilesShape&>(p_) = cut_patches(a.grad_y.sizes, a.x.sizes, a.window, t, PatchesOf::gradient);
  fits_ = p_.threads() <= kThreads && cut_outputs(p_, 2 * p_.rows);
  if (!fits_) return;
  share_out(p_, resident_blocks(kernel_, p_.threads(), static_cast<std::size_t>(p_.memory_bytes())));
}

void DepthwiseInputPatchesPass::run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
  DepthwisePatchesParameters p = p_;
  describe_tensors(p, a.grad_y, ConstTensorView(a.grad_x));
  p.raw_x = a.grad_y;
  p.weight = a.weight;
  launch_following(kName, kernel_, std::int64_t{channel_groups(p)} * p.splits, p.threads(), execution.stream, p,
                   static_cast<std::size_t>(p.memory_bytes()));
}

std::string why_no_input_patches(const DepthwiseBackwardArguments& a) {
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const std::string window = why_no_tiles(a.grad_y.sizes, a.x.sizes, a.window);
  if (!window.empty()) return window;
  const auto& [kernel, stride, dilation, padding] = a.window;
  if (stride[0] != 2 || padding.top >= kernel[0] || padding.left >= kernel[1]) return "it is for a stride of 2";
  if (a.prologue || a.gradient_prologue || a.grad_add) return "it has no seams";
  // Measured: there is nothing to win on less.
  if (a.grad_x.elements() < std::int64_t{24576} * multiprocessors()) return "there is too little work for it";
  if (!suits_copy_engine(ConstTensorView(a.grad_x)) || !suits_copy_engine(a.grad_y)) {
    return "a tensor does not suit the copy engine";
  }
  return {};
}

}  // namespace fusedsc::gpu::hopper
#endif
