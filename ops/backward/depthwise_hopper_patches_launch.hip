#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/backward/depthwise_gpu.h"
#include "fusedsc/backward/depthwise_hopper_patches_plan.h"
#include "fusedsc/backward/depthwise_hopper_weight_plan.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d_backward";

/// kThreads: the most that a block may have, where one has a multiprocessor for itself.
template <class T, int kKernel, int kThreads, bool kInClusters>
FUSEDSC_HOPPER_KERNEL(kThreads)
weight_patches_kernel(const FUSEDSC_GRID_CONSTANT DepthwiseWeightPatchesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwiseWeightPatches<T, kKernel, kInClusters>::run(p);
#endif
}

struct Instance {
  DataType dtype;
  int kernel, threads;
  DepthwiseWeightKernels<DepthwiseWeightPatchesParameters> kernels;
};

template <class T, int kKernel, int kThreads>
constexpr Instance instance(DataType dtype) {
  return {dtype,
          kKernel,
          kThreads,
          {weight_patches_kernel<T, kKernel, kThreads, false>, weight_patches_kernel<T, kKernel, kThreads, true>}};
}

const Instance kInstances[] = {
    // kernel, threads
    instance<Float16, 3, 640>(DataType::float16),
    instance<Float16, 5, 512>(DataType::float16),
    instance<BFloat16, 3, 640>(DataType::bfloat16),
    instance<BFloat16, 5, 512>(DataType::bfloat16),
};

/// What measured best on an H200 (docs/performance_gpu_depthwise.md).
DepthwisePatching choose_patching(const DepthwiseBackwardArguments& a) {
  const std::int64_t width = a.grad_y.sizes[3];
  const bool is_large = a.window.kernel[0] == 5;
  const int grain = width <= 8 || width > 32 ? 0 : width <= 16 ? 7 : is_large && a.x.sizes[0] >= 32 ? 28 : 14;
  if (is_large) return {.runs = 4, .box_runs = 4, .rows = 6, .stages = 3, .grain = grain};
  return {.runs = 4, .box_runs = 4, .rows = 4, .stages = 4, .grain = grain};
}

}  // namespace

DepthwiseWeightPatchesPass DepthwiseWeightPatchesPass::of(const DepthwiseBackwardArguments& a) {
  return DepthwiseWeightPatchesPass(a, choose_patching(a));
}

DepthwiseWeightPatchesPass::DepthwiseWeightPatchesPass(const DepthwiseBackwardArguments& a, const DepthwisePatching& t,
                                                       int cluster_size)
    : window_(static_cast<int>(a.window.kernel[0])) {
  const int step = 2 * ((window_ + 1) / 2);  // rows of x until rows of grad_y in registers are where they began
  for (const Instance& instance : kInstances) {
    if (instance.dtype == a.x.dtype && instance.kernel == window_ &&
        (2 * t.runs * t.image_parts + 1) * 32 <= instance.threads && t.rows % step == 0) {
      kernels_ = instance.kernels;
    }
  }
  if (kernels_.alone == nullptr) throw Unsupported(std::string(kName) + ": no kernel of these tiles");
  static_cast<DepthwiseTilesShape&>(p_) = cut_patches(a.x.sizes, a.grad_y.sizes, a.window, t, PatchesOf::both);
  p_.grad_rows = p_.rows;
  p_.grad_pitch = 4 * p_.image_lines;
  const int grad_image_bytes = p_.grad_rows * p_.grad_pitch * p_.box_bytes;
  p_.grad_bytes = round_up(p_.boxes * p_.images * grad_image_bytes, 1024);
  const auto jump = [&](int patches, int columns, int image_bytes) {
    return p_.image_lines > patches ? columns * p_.box_bytes : patches / p_.image_lines * image_bytes;
  };
  for (int i = 0; i < 2; ++i) {
    p_.x_jumps[i] = jump(4 << i, 16 << i, p_.image_bytes());
    p_.grad_jumps[i] = jump(4 << i, 16 << i, grad_image_bytes);
  }
  while (p_.memory_bytes() > kMemoryLimit && p_.stages > 1) --p_.stages;
  if (p_.memory_bytes() > kMemoryLimit) throw Unsupported(std::string(kName) + ": these tiles are too large");
  share_out_splits(p_, kernels_, a, cluster_size);
}

std::size_t DepthwiseWeightPatchesPass::workspace_bytes() const {
  Arena measured(nullptr);
  take_partials(p_, window_, measured);
  return measured.used();
}

void DepthwiseWeightPatchesPass::run(const DepthwiseBackwardArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  DepthwiseWeightPatchesParameters p = p_;
  p.x = map_of_images(a.x, p.box_bytes / 2, p.pitch, p.rows, p.images, p.exchanges);
  p.grad_y = map_of_images(a.grad_y, p.box_bytes / 2, p.grad_pitch, p.grad_rows, p.images, p.exchanges);
  p.sums.partials = take_partials(p_, window_, arena);
  p.sums.taps = window_ * window_ + (a.grad_bias ? 1 : 0);
  p.sums.grad_weight = a.grad_weight;
  p.sums.grad_bias = a.grad_bias.data;
  launch_weight_gradient(kName, kernels_, p, a, execution.stream);
}

std::string why_no_weight_patches(const DepthwiseBackwardArguments& a) {
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const std::string window = why_no_tiles(a.x.sizes, a.grad_y.sizes, a.window);
  if (!window.empty()) return window;
  if (a.window.stride[0] != 1) return "it is for a stride of 1";
  if (a.prologue || a.gradient_prologue) return "it has no prologues";
  // Measured: there is nothing to win on less.
  if (a.grad_y.elements() < std::int64_t{4096} * multiprocessors()) return "there is too little work for it";
  const std::int64_t width = a.grad_y.sizes[3], channels = a.x.sizes[1];
  if (a.window.kernel[0] == 3 && width <= 16) return "images are small";
  if (wants_weight_segments(a) || (a.window.kernel[0] == 3 && width > 32 && width <= 64 && channels % 32 != 0)) {
    return "boxes of channels would be partly empty";
  }
  if (!suits_copy_engine(a.x) || !suits_copy_engine(a.grad_y)) return "a tensor does not suit the copy engine";
  return {};
}

}  // namespace gpu::hopper
}  // namespace fusedsc
#endif
