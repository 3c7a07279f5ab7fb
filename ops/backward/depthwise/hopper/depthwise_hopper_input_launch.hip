#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_input_kernel.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_input_plan.h"
#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";
constexpr int kThreads = 512;  ///< the most that a block may have

template <class T, int kKernel, bool kInSegments>
constexpr void (*input_patches_kernel)(DepthwisePatchesParameters) =
    hopper_kernel<DepthwiseInputPatches<T, kKernel, kInSegments>, kThreads>;

template <class T>
auto kernel_of(std::int64_t kernel, bool in_segments) {
  if (in_segments) return kernel == 3 ? input_patches_kernel<T, 3, true> : input_patches_kernel<T, 5, true>;
  return kernel == 3 ? input_patches_kernel<T, 3, false> : input_patches_kernel<T, 5, false>;
}

/// Whether there is a kernel of such tiles, apart from the memory that they take.
bool has_tiles(const DepthwiseBackwardArguments& a, const DepthwisePatching& t) {
  if (!are_runs(a.grad_y, t) || t.rows < 1 || t.image_parts < 1 || t.stages < 2) return false;
  const std::int64_t width = a.x.sizes[3];
  return !t.in_segments ||
         (width > 16 && width <= 64 && has_dense_rows(a.grad_y) && has_dense_rows(ConstTensorView(a.grad_x)));
}

}  // namespace

DepthwiseInputPatchesPass::DepthwiseInputPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& t)
    : kernel_(a.x.dtype == DataType::float16 ? kernel_of<Float16>(a.window.kernel[0], t.in_segments)
                                             : kernel_of<BFloat16>(a.window.kernel[0], t.in_segments)) {
  if (!has_tiles(a, t)) return;
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

namespace {

std::string unsupported(const DepthwiseBackwardArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!a.grad_x) return "grad_x is not wanted";
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const std::string window = why_no_tiles(a.grad_y.sizes, a.x.sizes, a.window);
  if (!window.empty()) return window;
  const auto& [kernel, stride, dilation, padding] = a.window;
  if (stride[0] != 2 || padding.top >= kernel[0] || padding.left >= kernel[1]) return "it is for a stride of 2";
  if (a.prologue || a.gradient_prologue || a.grad_add) return "nothing can be fused with it";
  if (a.grad_y.elements() == 0 || a.x.elements() == 0) return "there is nothing to compute";
  if (!suits_tma(ConstTensorView(a.grad_x)) || !suits_tma(a.grad_y)) {
    return "a tensor does not suit TMA";
  }
  return {};
}

Configs configs(const DepthwiseBackwardArguments& a) {
  Configs list;
  for (const DepthwisePatching& t : patchings_of(a.grad_y)) {
    if (t.grain >= a.x.sizes[2]) continue;
    if (const DepthwiseInputPatchesPass pass(a, t); pass.fits() && pass.stages() == t.stages) {
      list.push_back(config_of(t));
    }
  }
  return list;
}

Plan<DepthwiseBackwardArguments> plan(const DepthwiseBackwardArguments& a, const Config& config, int /*threads*/) {
  const DepthwiseInputPatchesPass pass(a, patching_of(config));
  if (!pass.fits()) {
    throw Unsupported(std::string(kName) + ": hopper_patches: there is no kernel with " + tuning::printed(config) +
                      ", or its tiles do not fit shared memory");
  }
  return {0, [pass](const DepthwiseBackwardArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<DepthwiseBackwardArguments> depthwise_patches_input() { return {"hopper_patches", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
