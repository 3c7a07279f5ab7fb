#ifdef FUSEDSC_HOPPER
#include <optional>
#include <vector>

#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#include "fusedsc/forward/depthwise/hopper_patches/depthwise_hopper_patches_plan.h"
#include "fusedsc/forward/depthwise/hopper_tiles/depthwise_hopper_plan.h"

namespace fusedsc::gpu::hopper {
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

/// What measured best on an H200 (docs/log/performance_gpu_depthwise.md).
DepthwiseTiling choose_tiling(const DepthwiseArguments& a) {
  const std::int64_t batch = a.y.sizes[0], channels = a.y.sizes[1], width = a.y.sizes[3];
  const int stride = static_cast<int>(a.window.stride[0]), images = width <= 8 ? 4 : width <= 16 ? 2 : 1;
  if (a.window.kernel[0] == 5) return choose_large_window(stride, width, images);
  if (a.epilogue) return choose_for_epilogue(stride, width, images, channels % 64 == 0 ? 64 : 32);
  return a.prologue ? choose_for_prologue(stride, width, batch, channels) : choose_for_statistics(stride, width, batch);
}

/// What measured best on an H200 (docs/log/performance_gpu_depthwise.md), the better first.
std::vector<DepthwisePatching> patchings(const DepthwiseArguments& a) {
  const std::int64_t width = a.y.sizes[3];
  const int stride = static_cast<int>(a.window.stride[0]), runs = int_divide_up(a.x.sizes[1], 8);
  const bool is_large = a.window.kernel[0] == 5, is_many = a.y.sizes[0] >= 64;
  std::vector<DepthwisePatching> list;
  if (wants_segments(a)) {
    const int rows = stride == 1 || is_large ? 2 : 4;
    list = {{.runs = runs, .rows = rows, .stages = 3, .in_segments = true, .grain = is_large ? 7 : 28}};
  } else if (a.window.kernel[0] == 7) {  // not measured: few tiles of padding alone, and much of what there is room for
    if (runs < 4) list = {{runs, 0, 4, 1, 3}};
    else list = {width <= 16 ? DepthwisePatching{4, 4, 5, 1, 3} : DepthwisePatching{4, 4, 4, 1, 4}};
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

Config depthwise_tiles_prior(const DepthwiseArguments& a) {
  DepthwiseTiling tiling = choose_tiling(a);
  tiling.stages = DepthwiseTilesPass(a, tiling).stages();
  return config_of(tiling);
}

/// The first of the patchings with which all blocks have about as much to do, or the one that comes nearest to that.
Config depthwise_patches_prior(const DepthwiseArguments& a) {
  std::optional<DepthwisePatchesPass> best;
  DepthwisePatching chosen;
  const std::vector<DepthwisePatching> list = patchings(a);
  for (const DepthwisePatching& patching : list) {
    const DepthwisePatchesPass pass(a, patching);
    if (!pass.fits() || (best && (best->evenness() >= 0.75 || &patching == &list.back()))) continue;
    if (best && pass.evenness() <= best->evenness()) continue;
    best = pass;
    chosen = patching;
    chosen.stages = pass.stages();
  }
  return config_of(chosen);
}

bool wants_segments(const DepthwiseArguments& a) {
  if (a.window.kernel[0] == 7) return false;
  const std::int64_t channels = a.x.sizes[1], width = a.y.sizes[3];
  const bool is_strided = a.window.stride[0] == 2, is_large = a.window.kernel[0] == 5;
  const bool has_few_channels = channels >= 48 && channels <= 72, has_many_channels = channels > 128 && channels <= 144;
  const bool suits = is_strided ? (has_few_channels || (has_many_channels && is_large)) && width > 16
                                : has_many_channels && !is_large && width > 32;
  return suits && channels % 32 != 0 && width <= 64 && a.x.elements() >= std::int64_t{65536} * multiprocessors() &&
         has_dense_rows(a.x) && has_dense_rows(ConstTensorView(a.y));
}

}  // namespace fusedsc::gpu::hopper
#endif
