#ifdef FUSEDSC_HOPPER
#include <optional>
#include <vector>

#include "fusedsc/common/status.h"
#include "fusedsc/forward/depthwise_hopper_patches_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

constexpr const char* kName = "depthwise_conv2d";
/// The most that a block may have, where one has a multiprocessor for itself.
constexpr int most_threads(int kernel, bool few_registers) { return few_registers ? 640 : kernel == 3 ? 512 : 384; }

template <class T, int kKernel, int kStride, bool kInSegments = false, bool kFewRegisters = false>
FUSEDSC_HOPPER_KERNEL(most_threads(kKernel, kFewRegisters))
patches_kernel(const FUSEDSC_GRID_CONSTANT DepthwisePatchesParameters p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(FUSEDSC_HOST_EXECUTOR)  // other chips of a build have none of this
  DepthwisePatches<T, kKernel, kStride, kInSegments, kFewRegisters>::run(p);
#endif
}

/// Blocks of all channels, if these are many.
bool has_few_registers(const DepthwisePatching& t) { return t.in_segments && t.runs > 9; }

template <class T>
auto kernel_of(int kernel, int stride, const DepthwisePatching& t) {
  if (has_few_registers(t))
    return kernel == 3 ? patches_kernel<T, 3, 1, true, true> : patches_kernel<T, 5, 2, true, true>;
  if (t.in_segments) return kernel == 3 ? patches_kernel<T, 3, 2, true> : patches_kernel<T, 5, 2, true>;
  if (kernel == 3) return stride == 1 ? patches_kernel<T, 3, 1> : patches_kernel<T, 3, 2>;
  return stride == 1 ? patches_kernel<T, 5, 1> : patches_kernel<T, 5, 2>;
}

/// What measured best on an H200 (docs/performance_gpu_depthwise.md), the better first.
std::vector<DepthwisePatching> patchings(const DepthwiseArguments& a) {
  const std::int64_t width = a.y.sizes[3];
  const int stride = static_cast<int>(a.window.stride[0]), runs = int_divide_up(a.x.sizes[1], 8);
  const bool is_large = a.window.kernel[0] == 5, is_many = a.y.sizes[0] >= 64;
  std::vector<DepthwisePatching> list;
  if (wants_segments(a)) {
    const int rows = stride == 1 || is_large ? 2 : 4;
    list = {{.runs = runs, .rows = rows, .stages = 3, .in_segments = true, .grain = is_large ? 7 : 28}};
  } else if (is_large && stride == 1) {
    if (width <= 8) list = {runs % 9 == 0 ? DepthwisePatching{9, 0, 4, 1, 2} : DepthwisePatching{4, 4, 6, 1, 3}};
    else if (width <= 16) list = {{4, 4, 3, 1, 3}, {.runs = 4, .box_runs = 4, .rows = 5, .stages = 3, .grain = 5}};
    else if (width <= 32 && runs < 16) list = {{.runs = 8, .box_runs = 8, .rows = 3, .stages = 3, .grain = 7}};
    else if (width <= 32) list = {{8, 8, 4, 1, 4}};
    else list = {{4, 4, 4, 1, 3}};
  } else if (is_large) {
    if (width > 16 && runs == 9) list = {{9, 0, 4, 1, 2}};
    else if (width <= 16) list = {is_many ? DepthwisePatching{8, 8, 4, 1, 3} : DepthwisePatching{4, 4, 4, 1, 2}};
    else list = {{.runs = 8, .box_runs = 8, .rows = 4, .stages = 3, .grain = 28}};
  } else if (stride == 1) {
    if (width <= 8) list = {{4, 4, 3, 1, 3}, {12, 4, 3, 1, 3}};
    else if (width <= 16) list = {{4, 4, 4, 1, 3}, {12, 4, 2, 1, 4}};
    else if (width <= 32 && is_many)
      list = {{.runs = 4, .box_runs = 4, .rows = 3, .image_parts = 3, .stages = 3, .grain = 7}};
    else if (width <= 32) list = {{4, 4, 4, 1, 4}};
    else if (a.y.sizes[0] < 12) list = {{4, 4, 2, 1, 4}};
    else if (width <= 64) list = {runs % 4 == 0 ? DepthwisePatching{4, 4, 2, 3, 3} : DepthwisePatching{8, 8, 2, 1, 5}};
    else list = {{.runs = 4, .box_runs = 4, .rows = 2, .stages = 5, .grain = 2}};
  } else {
    if (width <= 16 || (width <= 32 && is_many))
      list = {{.runs = 8, .box_runs = 8, .rows = 2, .stages = 4, .grain = 7}};
    else if (width <= 32) list = {{.runs = 4, .box_runs = 4, .rows = 4, .stages = 3, .grain = 7}};
    else if (runs == 12) list = {{.runs = 12, .box_runs = 4, .rows = 2, .stages = 2, .grain = 28}};
    else list = {{4, 4, 6, 1, 2}};
  }
  list.push_back({4, 4, stride, 1, 2});  // which fits anywhere
  return list;
}

}  // namespace

/// The first of the patchings with which all blocks have about as much to do, or the one that comes nearest to that.
DepthwisePatchesPass DepthwisePatchesPass::of(const DepthwiseArguments& a) {
  std::optional<DepthwisePatchesPass> best;
  const std::vector<DepthwisePatching> list = patchings(a);
  for (const DepthwisePatching& patching : list) {
    const DepthwisePatchesPass pass(a, patching);
    if (!pass.fits() || (best && (best->evenness() >= 0.75 || &patching == &list.back()))) continue;
    if (!best || pass.evenness() > best->evenness()) best = pass;
  }
  return *best;
}

bool wants_segments(const DepthwiseArguments& a) {
  const std::int64_t channels = a.x.sizes[1], width = a.y.sizes[3];
  const bool is_strided = a.window.stride[0] == 2, is_large = a.window.kernel[0] == 5;
  const bool are_few = channels >= 48 && channels <= 72, are_many = channels > 128 && channels <= 144;
  const bool suits =
      is_strided ? (are_few || (are_many && is_large)) && width > 16 : are_many && !is_large && width > 32;
  return suits && channels % 32 != 0 && width <= 64 && a.x.elements() >= std::int64_t{65536} * multiprocessors() &&
         has_dense_rows(a.x) && has_dense_rows(ConstTensorView(a.y));
}

void describe_tensors(DepthwisePatchesParameters& p, const ConstTensorView& x, const ConstTensorView& y) {
  if (p.segments > 0) {
    p.x = map_of_rows(x, p.segment_bytes, p.rows, p.images);
    p.y = map_of_rows(y, p.out_segment_bytes, 1, p.images);
  } else {
    p.x = map_of_images(x, p.box_bytes / 2, p.pitch, p.rows, p.images, p.exchanges);
    p.y = map_of_images(y, p.box_bytes / 2, p.out_pitch, 1, p.images, p.exchanges);
  }
}

bool cut_outputs(DepthwisePatchesParameters& p, int rows) {
  p.out_rows = rows;
  const int image_bytes = p.out_pitch * p.box_bytes;
  p.out_row_bytes = round_up(p.images * image_bytes, p.exchanges ? 1024 : 128);
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
  const int kernel = static_cast<int>(a.window.kernel[0]), stride = static_cast<int>(a.window.stride[0]);
  kernel_ =
      a.x.dtype == DataType::float16 ? kernel_of<Float16>(kernel, stride, t) : kernel_of<BFloat16>(kernel, stride, t);
  static_cast<DepthwiseTilesShape&>(p_) = cut_patches(a.x.sizes, a.y.sizes, a.window, t, PatchesOf::output);
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
  launch_following(kName, kernel_, std::int64_t{channel_groups(p)} * p.splits, p.threads(), execution.stream, p,
                   static_cast<std::size_t>(p.memory_bytes()));
}

}  // namespace fusedsc::gpu::hopper
#endif
