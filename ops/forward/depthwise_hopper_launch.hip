#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/forward/depthwise_direct_launch.h"
#include "fusedsc/forward/depthwise_gpu.h"
#include "fusedsc/forward/depthwise_hopper_patches_plan.h"
#include "fusedsc/forward/depthwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
/// kThreads: the most that a block may have; kBlocks: that shall fit a multiprocessor then.
template <class T, int kKernel, int kStride, int kProducts, DepthwiseSeams kSeams, int kThreads, int kBlocks>
FUSEDSC_KERNEL(kThreads, kBlocks)
tiles_kernel(const FUSEDSC_GRID_CONSTANT DepthwiseTilesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwiseTiles<T, kKernel, kStride, kProducts, kSeams>::run(p);
#endif
}

using Kernel = void (*)(DepthwiseTilesParameters);

struct Instance {
  DataType dtype;
  int kernel, stride, products;
  DepthwiseSeams seams;
  Kernel run;
};

template <class T, int kKernel, int kStride, int kProducts, int kThreads, int kBlocks>
void append(std::vector<Instance>& to, DataType dtype) {
  using enum DepthwiseSeams;
  const auto add = [&](DepthwiseSeams seams, Kernel kernel) {
    to.push_back({dtype, kKernel, kStride, kProducts, seams, kernel});
  };
  add(training, tiles_kernel<T, kKernel, kStride, kProducts, training, kThreads, kBlocks>);
  add(all, tiles_kernel<T, kKernel, kStride, kProducts, all, kThreads, 1>);
}

template <class T>
void append_all(std::vector<Instance>& to, DataType dtype) {
  // Kernel, stride, products; threads and blocks.
  append<T, 3, 1, 1, 288, 2>(to, dtype);
  append<T, 3, 1, 2, 288, 2>(to, dtype);
  append<T, 3, 1, 4, 160, 3>(to, dtype);
  append<T, 3, 1, 7, 160, 2>(to, dtype);
  append<T, 3, 2, 1, 288, 2>(to, dtype);
  append<T, 3, 2, 2, 288, 2>(to, dtype);
  append<T, 3, 2, 4, 160, 3>(to, dtype);
  append<T, 5, 1, 1, 160, 2>(to, dtype);
  append<T, 5, 1, 2, 160, 2>(to, dtype);
  append<T, 5, 1, 4, 160, 2>(to, dtype);
  append<T, 5, 2, 1, 160, 2>(to, dtype);
  append<T, 5, 2, 2, 160, 2>(to, dtype);
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    append_all<Float16>(list, DataType::float16);
    append_all<BFloat16>(list, DataType::bfloat16);
    return list;
  }();
  return all;
}

DepthwiseSeams seams_of(const DepthwiseArguments& a) {
  return a.epilogue ? DepthwiseSeams::all : DepthwiseSeams::training;
}

}  // namespace

namespace {

DepthwiseTiling choose_large_window(int stride, std::int64_t width, int images) {
  if (stride == 2) return {2, 32, 1, width <= 16 ? 6 : 10, images, 1, width <= 16 ? 2 : 3};
  if (width <= 8) return {2, 32, 1, 6, images, 1, 2};
  if (width <= 16) return {2, 32, 1, 6, 2, 1, 2};
  if (width <= 32) return {2, 32, 1, 8, 1, 1, 3};
  return {4, 32, 1, 4, 1, 1, 2};
}

/// With an epilogue.
DepthwiseTiling choose_for_epilogue(int stride, std::int64_t width, int images, int wide_box) {
  if (stride == 2) {
    if (width <= 16) return {2, wide_box, 1, wide_box > 32 ? 6 : 4, images, 1, width <= 8 ? 2 : 3};
    return width <= 32 ? DepthwiseTiling{2, 32, 1, 4, 1, 1, 3} : DepthwiseTiling{4, 32, 1, 4, 1, 1, 3};
  }
  if (width <= 8) return {2, wide_box, 1, 9, 4, 1, 2};
  if (width <= 16) return {4, 32, 1, 4, 4, 1, 2};
  if (width <= 32) return {2, wide_box, 1, 6, 1, 1, 2};
  if (width <= 64) return {4, 32, 1, 4, 1, 1, 3};
  return {7, 32, 1, 3, 1, 1, 3};
}

/// With a prologue, which goes over each element of a tile once more.
DepthwiseTiling choose_for_prologue(int stride, std::int64_t width, std::int64_t batch, std::int64_t channels) {
  const bool is_huge = batch >= 256;
  if (stride == 2) {
    if (width <= 8) return {1, 32, 1, 8, 2, 1, 2};
    if (width <= 16) return {2, 32, 1, 6, 2, 1, 2, false, 7};
    if (width <= 32) return {2, 32, 1, 6, 1, 1, 2, false, 7};
    return {4, 32, 1, 4, 1, 1, 3};
  }
  if (width <= 8) return {2, 32, 1, 9, 4, 1, 2};
  if (width <= 16) {
    if (is_huge || (batch >= 128 && channels <= 400)) return {4, 32, 1, 4, 4, 1, 2};
    return {2, 32, 1, 8, 2, 1, 2};
  }
  if (width <= 32) {
    if (is_huge) return {2, channels % 64 == 0 ? 64 : 32, 1, 6, 1, 1, 2};
    return {2, 32, 1, 6, 1, 1, 3, false, 14};
  }
  if (width <= 64) return {4, 32, 1, 4, 1, 1, 2, false, 14};
  return {7, 32, 1, 3, 1, 1, 3, false, 3};
}

DepthwiseTiling choose_for_statistics(int stride, std::int64_t width, std::int64_t batch) {
  const bool is_many = batch >= 128;
  if (stride == 2) {
    if (width <= 8) return {1, 32, 1, 8, 2, 1, 4};
    if (width <= 16) return {2, 32, 1, 6, 2, 1, 2, false, 7};
    if (width > 32) return {4, 32, 1, 6, 1, 1, 2, false, 3};
    return batch < 16 ? DepthwiseTiling{2, 32, 1, 4, 1, 1, 3} : DepthwiseTiling{2, 64, 1, 6, 1, 1, 3, false, 14};
  }
  if (width <= 8) return {4, 32, 1, 3, 8, 1, 4};
  if (width <= 16) {
    return is_many ? DepthwiseTiling{4, 32, 1, 2, 4, 1, 4, false, 4} : DepthwiseTiling{4, 32, 1, 4, 4, 1, 2};
  }
  if (width <= 32) return {2, 32, 1, batch >= 256 ? 10 : 6, 1, 1, 3, false, 14};
  if (width <= 64) {
    return is_many ? DepthwiseTiling{4, 32, 1, 10, 1, 1, 3, false, 10} : DepthwiseTiling{4, 32, 1, 4, 1, 1, 3};
  }
  return is_many ? DepthwiseTiling{7, 32, 1, 6, 1, 1, 2, false, 6} : DepthwiseTiling{7, 32, 1, 3, 1, 1, 3, false, 3};
}

}  // namespace

/// What measured best on an H200 (docs/performance_gpu_depthwise.md).
DepthwiseTiling choose_tiling(const DepthwiseArguments& a) {
  const std::int64_t batch = a.y.sizes[0], channels = a.y.sizes[1], width = a.y.sizes[3];
  const int stride = static_cast<int>(a.window.stride[0]), images = width <= 8 ? 4 : width <= 16 ? 2 : 1;
  if (a.window.kernel[0] == 5) return choose_large_window(stride, width, images);
  if (a.epilogue) return choose_for_epilogue(stride, width, images, channels % 64 == 0 ? 64 : 32);
  return a.prologue ? choose_for_prologue(stride, width, batch, channels) : choose_for_statistics(stride, width, batch);
}

DepthwiseTilesPass::DepthwiseTilesPass(const DepthwiseArguments& a, const DepthwiseTiling& t)
    : kernel_(nullptr), box_channels_(t.box_channels) {
  const int kernel = static_cast<int>(a.window.kernel[0]), stride = static_cast<int>(a.window.stride[0]);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == kernel && instance.stride == stride &&
        instance.products == t.products && instance.seams == seams_of(a)) {
      kernel_ = instance.run;
    }
  }
  if (kernel_ == nullptr) throw Unsupported("depthwise_conv2d: no kernel of these tiles");
  static_cast<DepthwiseTilesShape&>(p_) = cut_tiles(a.x.sizes, a.y.sizes, a.window, t);
  p_.activation = a.prologue.activation;
  p_.epilogue_activation = a.epilogue.activation;
  p_.has_prologue = static_cast<bool>(a.prologue);
  const int out_image_bytes = p_.out_pitch * p_.box_bytes;
  p_.out_bytes = round_up(p_.boxes * (p_.rows / stride) * p_.images * out_image_bytes, 1024);
  p_.out_half_bytes = p_.halves_are_images() ? out_image_bytes : 8 * p_.box_bytes;
  p_.out_product_bytes = p_.products_are_images() && !p_.halves_are_images() ? out_image_bytes : 2 * p_.out_half_bytes;
  while (p_.memory_bytes() > kMemoryLimit && p_.stages > 1) --p_.stages;
  share_out(p_, resident_blocks(kernel_, (p_.warps() + 1) * 32, static_cast<std::size_t>(p_.memory_bytes())));
}

float* DepthwiseTilesPass::take_partials(const DepthwiseArguments& a, Arena& arena) const {
  return a.statistics ? arena.take<float>(std::int64_t{3} * p_.splits * p_.channels) : nullptr;
}

std::size_t DepthwiseTilesPass::workspace_bytes(const DepthwiseArguments& a) const {
  Arena measured(nullptr);
  take_partials(a, measured);
  return measured.used();
}

void DepthwiseTilesPass::run(const DepthwiseArguments& a, const Execution& execution) const {
  Arena arena(execution.workspace);
  DepthwiseTilesParameters p = p_;
  p.x = map_of_images(a.x, box_channels_, p.pitch, p.rows, p.images, true);
  p.has_y = a.y.data != nullptr;
  if (p.has_y) p.y = map_of_images(ConstTensorView(a.y), box_channels_, p.out_pitch, 1, p.images, true);
  p.raw_x = a.x;
  p.weight = a.weight;
  p.residual = a.epilogue.residual;
  p.bias = a.bias.data;
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  p.epilogue_scale = static_cast<const float*>(a.epilogue.scale.data);
  p.epilogue_shift = static_cast<const float*>(a.epilogue.shift.data);
  p.partials = take_partials(a, arena);
  launch_following(kName, kernel_, std::int64_t{channel_groups(p)} * p.splits, (p.warps() + 1) * 32, execution.stream,
                   p, static_cast<std::size_t>(p.memory_bytes()));
  if (!a.statistics) return;
  launch_merge_moments("depthwise_conv2d: statistics", DataType::float32, p.partials, p.splits, a.statistics,
                       a.y.sizes[0] * a.y.sizes[2] * a.y.sizes[3], execution.stream);
}

namespace {

std::string why_not(const DepthwiseArguments& a) {
  std::string reason = needs_device(Device::gpu, a.x.device);
  if (!reason.empty()) return reason;
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const Window& window = a.window;
  reason = why_no_tiles(a.x.sizes, a.y.sizes, window);
  if (!reason.empty()) return reason;
  if (a.y.elements() == 0) return "there is nothing to compute";
  // Measured: there is nothing to win on less, or on rows of positions that are a few parts of lines of memory.
  if (a.x.elements() < std::int64_t{4096} * multiprocessors()) return "there is too little work for it";
  if (suits_depthwise_direct(a)) return "the problem is small: threads with one output each are faster";
  const bool is_plain = !a.prologue && !a.epilogue && !a.statistics && !a.bias;
  if (a.x.sizes[1] % 32 != 0 && a.x.sizes[1] <= (window.kernel[0] == 5 ? 64 : 128) &&
      !(is_plain && wants_segments(a))) {
    return "it has few channels, and no multiple of 32";
  }
  if (window.kernel[0] == 3 && window.stride[0] == 2 && a.y.sizes[3] <= 8 &&
      (is_plain || a.epilogue || a.y.sizes[0] < (a.prologue ? 128 : 32))) {
    return "images are small, at stride 2";
  }
  const ConstTensorView& residual = a.epilogue.residual;
  if (!suits_copy_engine(a.x) || !suits_copy_engine(ConstTensorView(a.y)) || !suits_copy_engine(residual)) {
    return "channels of x or y are not neighbours, or no multiples of 8, or not aligned to 16 bytes";
  }
  return {};
}

template <class Pass>
Plan<DepthwiseArguments> plan_of(const Pass& pass, std::size_t workspace_bytes) {
  return {workspace_bytes,
          [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

Plan<DepthwiseArguments> plan_forward(const DepthwiseArguments& a, int /*threads*/) {
  if (!a.prologue && !a.epilogue && !a.statistics && !a.bias) return plan_of(DepthwisePatchesPass::of(a), 0);
  const DepthwiseTilesPass pass(a, choose_tiling(a));
  return plan_of(pass, pass.workspace_bytes(a));
}

}  // namespace
}  // namespace gpu::hopper

Implementation<DepthwiseArguments> depthwise_hopper() {
  return {"gpu_hopper", gpu::hopper::why_not, gpu::hopper::plan_forward};
}

}  // namespace fusedsc
#endif
