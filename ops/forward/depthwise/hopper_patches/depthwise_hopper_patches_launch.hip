#ifdef FUSEDSC_HOPPER
#include <vector>

#include "fusedsc/common/gpu/hopper/hopper_kernel.h"
#include "fusedsc/common/status.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
/// The most that a block may have, where one has a multiprocessor for itself.
constexpr int most_threads(int kernel, bool few_registers) { return few_registers ? 640 : kernel == 3 ? 512 : 384; }

template <class T, int kKernel, int kStride, bool kInSegments = false, bool kFewRegisters = false>
constexpr void (*patches_kernel)(DepthwisePatchesParameters) = hopper_kernel<
    DepthwisePatches<T, kKernel, kStride, kInSegments, kFewRegisters>, most_threads(kKernel, kFewRegisters)>;

/// Blocks of all channels, if these are many.
bool has_few_registers(const DepthwisePatching& t) { return t.in_segments && t.runs > 9; }

template <class T>
auto kernel_of(int kernel, int stride, const DepthwisePatching& t) {
  if (has_few_registers(t))
    return kernel == 3 ? patches_kernel<T, 3, 1, true, true> : patches_kernel<T, 5, 2, true, true>;
  if (t.in_segments) return kernel == 3 ? patches_kernel<T, 3, 2, true> : patches_kernel<T, 5, 2, true>;
  if (kernel == 3) return stride == 1 ? patches_kernel<T, 3, 1> : patches_kernel<T, 3, 2>;
  if (kernel == 7) return patches_kernel<T, 7, 1>;
  return stride == 1 ? patches_kernel<T, 5, 1> : patches_kernel<T, 5, 2>;
}

/// Whether there is a kernel of such tiles, apart from the memory that they take.
bool has_tiles(const DepthwiseArguments& a, const DepthwisePatching& t) {
  const std::int64_t kernel = a.window.kernel[0], stride = a.window.stride[0], width = a.y.sizes[3];
  if (!are_runs(a.x, t) || t.rows < 1 || t.rows % stride != 0 || t.image_parts < 1 || t.stages < 2) return false;
  if (!t.in_segments) return true;
  if (kernel == 7) return false;
  const bool has_kernel = has_few_registers(t) ? (kernel == 3) == (stride == 1) : stride == 2;
  return has_kernel && width > 16 && width <= 64 && has_dense_rows(a.x) && has_dense_rows(ConstTensorView(a.y));
}

}  // namespace

void describe_tensors(DepthwisePatchesParameters& p, const ConstTensorView& x, const ConstTensorView& y) {
  if (p.segments > 0) {
    p.x = map_of_rows(x, p.segment_bytes, p.rows, p.images);
    p.y = map_of_rows(y, p.out_segment_bytes, 1, p.images);
  } else {
    p.x = map_of_images(x, p.box_bytes / 2, p.pitch, p.rows, p.images, p.swizzles);
    p.y = map_of_images(y, p.box_bytes / 2, p.out_pitch, 1, p.images, p.swizzles);
  }
}

bool cut_outputs(DepthwisePatchesParameters& p, int rows) {
  p.out_rows = rows;
  const int image_bytes = p.out_pitch * p.box_bytes;
  p.out_row_bytes = round_up(p.images * image_bytes, p.swizzles ? 1024 : 128);
  p.out_bytes = round_up(p.boxes * p.out_rows * p.out_row_bytes, 1024);
  p.out_half_bytes = p.image_lines == 16 ? 32 * p.box_bytes : 8 / p.image_lines * image_bytes;
  if (p.segments > 0) {
    p.out_segment_bytes = segment_of(32 * p.box_bytes);
    p.out_segments = int_divide_up(image_bytes, p.out_segment_bytes);
    p.out_row_bytes = p.out_segments * p.images * p.out_segment_bytes;
    p.out_bytes = round_up(p.out_rows * p.out_row_bytes, 1024);
    p.out_half_bytes = p.image_lines == 16 ? 32 * p.box_bytes * p.images : 8 / p.image_lines * p.out_segment_bytes;
  }
  while (p.memory_bytes() > kMemoryLimit && p.stages > 2) --p.stages;
  return p.memory_bytes() <= kMemoryLimit;
}

DepthwisePatchesPass::DepthwisePatchesPass(const DepthwiseArguments& a, const DepthwisePatching& t) {
  if (!has_tiles(a, t)) return;
  const int kernel = static_cast<int>(a.window.kernel[0]), stride = static_cast<int>(a.window.stride[0]);
  kernel_ =
      a.x.dtype == DataType::float16 ? kernel_of<Float16>(kernel, stride, t) : kernel_of<BFloat16>(kernel, stride, t);
  static_cast<DepthwiseTilesShape&>(p_) = cut_patches(a.x.sizes, a.y.sizes, a.window, t, PatchesOf::output);
  p_.run_parts = 4 / patches_pairs(kernel);
  const bool few_registers = has_few_registers(t);
  if (few_registers && kernel == 5) p_.weight_bytes = DepthwisePackedWeights<Float16, 5, 2>::kept_bytes(p_.warps());
  fits_ = p_.threads() <= most_threads(kernel, few_registers) && cut_outputs(p_, p_.rows / stride);
  if (!fits_) return;
  share_out(p_, resident_blocks(kernel_, p_.threads(), static_cast<std::size_t>(p_.memory_bytes())));
}

void DepthwisePatchesPass::run(const DepthwiseArguments& a, const Execution& execution) const {
  DepthwisePatchesParameters p = p_;
  describe_tensors(p, a.x, ConstTensorView(a.y));
  p.raw_x = a.x;
  p.weight = a.weight;
  p.bias = a.bias.data;
  launch_following(kName, kernel_, std::int64_t{channel_groups(p)} * p.splits, p.threads(), execution.stream, p,
                   static_cast<std::size_t>(p.memory_bytes()));
}

namespace {

std::string unsupported(const DepthwiseArguments& a) {
  const std::string elsewhere = why_not_on_gpu(a);
  if (!elsewhere.empty()) return elsewhere;
  if (!is_hopper()) return "the GPU is not of compute capability 9.0";
  if (size_of(a.x.dtype) != 2) return "it is for float16 and bfloat16";
  const std::string window = why_no_patches(a.x.sizes, a.y.sizes, a.window);
  if (!window.empty()) return window;
  if (a.prologue || a.epilogue || a.statistics) return "nothing can be fused with it";
  if (a.bias && !patches_take_bias(static_cast<int>(a.window.kernel[0]))) {
    return "with windows of 3 x 3 and 5 x 5 no bias can be added";
  }
  if (a.y.elements() == 0) return "there is nothing to compute";
  if (!suits_tma(a.x) || !suits_tma(ConstTensorView(a.y))) {
    return "channels of x or y are not neighbours, or no multiples of 8, or not aligned to 16 bytes";
  }
  return {};
}

Configs configs(const DepthwiseArguments& a) {
  Configs list;
  for (const DepthwisePatching& t : patchings_of(a.x)) {
    if (t.grain >= a.y.sizes[2]) continue;
    if (const DepthwisePatchesPass pass(a, t); pass.fits() && pass.stages() == t.stages) list.push_back(config_of(t));
  }
  return list;
}

Plan<DepthwiseArguments> plan(const DepthwiseArguments& a, const Config& config, int /*threads*/) {
  const DepthwisePatchesPass pass(a, patching_of(config));
  if (!pass.fits()) {
    throw Unsupported(std::string(kName) + ": hopper_patches: there is no kernel with " + tuning::printed(config) +
                      ", or its tiles do not fit shared memory");
  }
  return {0, [pass](const DepthwiseArguments& like, const Execution& execution) { pass.run(like, execution); }};
}

}  // namespace

Kernel<DepthwiseArguments> depthwise_patches() { return {"hopper_patches", unsupported, configs, plan}; }

}  // namespace fusedsc::gpu::hopper
#endif
