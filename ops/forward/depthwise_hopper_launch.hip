#ifdef FUSEDSC_HOPPER
#include <algorithm>

#include "fusedsc/common/gpu/partials_launch.h"
#include "fusedsc/forward/depthwise_gpu.h"
#include "fusedsc/forward/depthwise_hopper_plan.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc {
namespace gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
/// kThreads: the most that a block may have, where one has a multiprocessor for itself.
template <class T, int kKernel, int kStride, DepthwiseSeams kSeams, int kThreads>
FUSEDSC_HOPPER_KERNEL(kThreads)
tiles_kernel(const FUSEDSC_GRID_CONSTANT DepthwiseTilesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwiseTiles<T, kKernel, kStride, kSeams>::run(p);
#endif
}

using Kernel = void (*)(DepthwiseTilesParameters);

struct Instance {
  DataType dtype;
  int kernel, stride;
  DepthwiseSeams seams;
  int threads;
  Kernel run;
};

template <class T, int kKernel, int kStride>
void append(std::vector<Instance>& to, DataType dtype) {
  using enum DepthwiseSeams;
  constexpr int kPlain = kKernel == 3 ? 512 : 384, kWithSeams = kKernel == 3 ? 384 : 256;
  to.push_back({dtype, kKernel, kStride, none, kPlain, tiles_kernel<T, kKernel, kStride, none, kPlain>});
  to.push_back({dtype, kKernel, kStride, training, kWithSeams, tiles_kernel<T, kKernel, kStride, training, kWithSeams>});
  to.push_back({dtype, kKernel, kStride, all, kWithSeams, tiles_kernel<T, kKernel, kStride, all, kWithSeams>});
}

const std::vector<Instance>& instances() {
  static const std::vector<Instance> all = [] {
    std::vector<Instance> list;
    const auto append_all = [&]<class T>(T, DataType dtype) {
      append<T, 3, 1>(list, dtype);
      append<T, 3, 2>(list, dtype);
      append<T, 5, 1>(list, dtype);
      append<T, 5, 2>(list, dtype);
    };
    append_all(Float16(), DataType::float16);
    append_all(BFloat16(), DataType::bfloat16);
    return list;
  }();
  return all;
}

DepthwiseSeams seams_of(const DepthwiseArguments& a) {
  if (a.epilogue || (a.bias && !a.statistics)) return DepthwiseSeams::all;
  return a.prologue || a.statistics ? DepthwiseSeams::training : DepthwiseSeams::none;
}

}  // namespace

DepthwisePatching choose_patching(const DepthwiseArguments& a) {
  return {8, 8, 2, 1, 3, 0};
}

void cut_outputs(DepthwiseTilesParameters& p, int rows) {
  p.out_rows = rows;
  const int image_bytes = p.out_pitch * p.box_bytes;
  p.out_row_bytes = round_up(p.images * image_bytes, p.exchanges ? 1024 : 128);
  p.out_bytes = round_up(p.boxes * p.out_rows * p.out_row_bytes, 1024);
  p.out_half_bytes = p.image_lines == 16 ? 32 * p.box_bytes : 8 / p.image_lines * image_bytes;
  while (p.memory_bytes() > kMemoryLimit && p.stages > 2) --p.stages;
  if (p.memory_bytes() > kMemoryLimit) throw Unsupported("depthwise_conv2d: these tiles are too large");
}

DepthwiseTilesPass::DepthwiseTilesPass(const DepthwiseArguments& a, const DepthwisePatching& t) : kernel_(nullptr) {
  const int kernel = static_cast<int>(a.window.kernel[0]), stride = static_cast<int>(a.window.stride[0]);
  for (const Instance& instance : instances()) {
    if (instance.dtype == a.x.dtype && instance.kernel == kernel && instance.stride == stride &&
        instance.seams == seams_of(a) && (t.runs * t.image_parts + 2) * 32 <= instance.threads) {
      kernel_ = instance.run;
    }
  }
  if (kernel_ == nullptr) throw Unsupported("depthwise_conv2d: no kernel of these tiles");
  static_cast<DepthwiseTilesShape&>(p_) = cut_patches(a.x.sizes, a.y.sizes, a.window, t, PatchesOf::output);
  p_.activation = a.prologue.activation;
  p_.epilogue_activation = a.epilogue.activation;
  p_.has_prologue = static_cast<bool>(a.prologue);
  p_.starts_next_first = t.early;
  cut_outputs(p_, p_.rows / stride);
  share_out(p_, resident_blocks(kernel_, p_.threads(), static_cast<std::size_t>(p_.memory_bytes())));
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
  p.x = map_of_images(a.x, p.box_bytes / 2, p.pitch, p.rows, p.images, p.exchanges);
  p.has_y = a.y.data != nullptr;
  if (p.has_y) p.y = map_of_images(ConstTensorView(a.y), p.box_bytes / 2, p.out_pitch, 1, p.images, p.exchanges);
  p.raw_x = a.x;
  p.weight = a.weight;
  p.residual = a.epilogue.residual;
  p.bias = a.bias.data;
  p.scale = static_cast<const float*>(a.prologue.scale.data);
  p.shift = static_cast<const float*>(a.prologue.shift.data);
  p.epilogue_scale = static_cast<const float*>(a.epilogue.scale.data);
  p.epilogue_shift = static_cast<const float*>(a.epilogue.shift.data);
  p.partials = take_partials(a, arena);
  launch_following(kName, kernel_, std::int64_t{channel_groups(p)} * p.splits, p.threads(), execution.stream, p,
                   static_cast<std::size_t>(p.memory_bytes()));
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
  if (a.x.sizes[1] % 32 != 0 && a.x.sizes[1] <= (window.kernel[0] == 5 ? 64 : 128)) {
    return "it has few channels, and no multiple of 32";
  }
  if (window.kernel[0] == 3 && window.stride[0] == 2 && a.y.sizes[3] <= 8) return "images are small, at stride 2";
  const ConstTensorView& residual = a.epilogue.residual;
  if (!suits_copy_engine(a.x) || !suits_copy_engine(ConstTensorView(a.y)) || !suits_copy_engine(residual)) {
    return "channels of x or y are not neighbours, or no multiples of 8, or not aligned to 16 bytes";
  }
  return {};
}

Plan<DepthwiseArguments> plan_forward(const DepthwiseArguments& a, int /*threads*/) {
  const DepthwiseTilesPass pass(a, choose_patching(a));
  return {pass.workspace_bytes(a),
          [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace
}  // namespace gpu::hopper

Implementation<DepthwiseArguments> depthwise_hopper() {
  return {"gpu_hopper", gpu::hopper::why_not, gpu::hopper::plan_forward};
}

}  // namespace fusedsc
#endif
