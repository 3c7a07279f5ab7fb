#ifdef FUSEDSC_HOPPER
#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_input_plan.h"
#include "fusedsc/backward/depthwise/hopper/depthwise_hopper_patches_plan.h"
#include "fusedsc/backward/depthwise/hopper_weight/depthwise_hopper_weight_plan.h"

namespace fusedsc::gpu::hopper {
namespace {

/// What measured best on an H200 (docs/log/performance_gpu_depthwise.md).
DepthwisePatching choose_input_patching(const DepthwiseBackwardArguments& a) {
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

/// What measured best on an H200 (docs/log/performance_gpu_depthwise.md).
DepthwisePatching choose_weight_patching(const DepthwiseBackwardArguments& a) {
  const std::int64_t width = a.grad_y.sizes[3];
  const bool is_large = a.window.kernel[0] > 3;
  const int grain = width <= 8 || width > 32 ? 0 : width <= 16 ? 7 : is_large && a.x.sizes[0] >= 32 ? 28 : 14;
  // Of 7x7 windows not measured: two blocks to a multiprocessor.
  const int stages = a.window.kernel[0] == 7 && width <= 8 ? 2 : 3;
  if (is_large) return {.runs = 4, .box_runs = 4, .rows = 6, .stages = stages, .grain = grain};
  return {.runs = 4, .box_runs = 4, .rows = 4, .stages = 4, .grain = grain};
}

/// Where boxes of so few channels would be partly empty: rows of images, in segments. What measured best on an H200
/// (docs/log/performance_gpu_depthwise.md).
DepthwiseTiling choose_segments(const DepthwiseBackwardArguments& a) {
  const std::int64_t batch = a.x.sizes[0], width = a.grad_y.sizes[3], height = a.grad_y.sizes[2];
  const int channels = static_cast<int>(a.x.sizes[1]), parts = channels <= 16 ? 4 : channels <= 48 ? 2 : 1;
  const bool is_large = a.window.kernel[0] == 5, is_many = batch >= 64;
  const auto tiling = [&](int products, int rows, int stages, int grain) {
    return DepthwiseTiling{products, channels, 1, rows, 1, parts, stages, true, grain};
  };
  if (is_large) return tiling(2, 4, 3, 2);
  if (a.window.stride[0] == 2) {
    if (parts == 4) return tiling(2, 2, 3, 4);
    return tiling(2, parts == 2 ? 4 : 6, is_many ? 2 : 4, 7);
  }
  const bool is_even = int_divide_up(batch, parts) * int_divide_up(height, 7) * 4 >= 3 * multiprocessors();
  if (parts == 2) return is_even ? tiling(2, 3, 4, 7) : tiling(2, 2, 4, 4);
  return parts == 1 && width > 32 && is_many ? tiling(4, 3, 3, 7) : tiling(2, 4, 3, 7);
}

/// What measured best there, likewise.
DepthwiseTiling choose_weight_tiling(const DepthwiseBackwardArguments& a) {
  if (wants_weight_segments(a)) return choose_segments(a);
  const std::int64_t batch = a.x.sizes[0], channels = a.x.sizes[1], width = a.grad_y.sizes[3];
  const int kernel = static_cast<int>(a.window.kernel[0]), stride = static_cast<int>(a.window.stride[0]);
  const bool is_large = kernel == 5, is_many = batch >= 64;
  const int wide_box = channels > 32 ? 64 : 32;
  if (batch <= 2 && width <= 16) {  // a tile is all there is
    const int rows = round_up((a.grad_y.sizes[2] - 1) * stride + kernel, stride);
    return {2, 32, 1, rows, width <= 8 ? 4 : 2, 1, 1};
  }
  const bool is_few = channels <= 128;  // then images are divided, so that all multiprocessors have work
  if (stride == 2) {
    if (width <= 8 && is_few && !is_large) return {2, 32, 1, 2, 4, 1, 4, false, 2};
    if (width <= 8) return {2, 32, 1, 4, 4, 1, 2};
    if (width <= 16 && is_large) return {2, 32, 1, 2, 2, 1, 4};
    if (width <= 16 && is_few) return {2, wide_box, 1, 2, 2, 1, 4, false, 4};
    if (width <= 16) return {2, is_many ? wide_box : 32, 1, 2, 2, 1, 4};
    if (width <= 32 && is_large) {
      if (batch < 32) return {2, 32, 1, 4, 1, 1, 4};
      return is_many ? DepthwiseTiling{2, 32, 1, 4, 1, 1, 2, false, 28}
                     : DepthwiseTiling{2, 32, 1, 2, 1, 1, 3, false, 2};
    }
    if (width <= 32) {
      return is_many ? DepthwiseTiling{2, wide_box, 1, 6, 1, 1, 3, false, 14}
                     : DepthwiseTiling{2, wide_box, 1, 4, 1, 1, 3, false, 2};
    }
    return is_large ? DepthwiseTiling{4, 32, 1, 2, 1, 1, 3}
                    : DepthwiseTiling{4, wide_box, 1, 2, 1, 1, 3, false, is_many && channels <= 64 ? 28 : 0};
  }
  if (is_large) {
    if (width <= 8) return {2, 32, 1, 4, 4, 1, 2};
    if (width <= 16) return {4, 32, 1, 3, 4, 1, 2};
    return {2, 32, 1, 4, 1, 1, 2};
  }
  const bool is_wide = channels > 400 && batch >= 32;
  if (width <= 8) {
    if (is_few && is_many) return {4, 32, 1, 4, 8, 1, 4, false, 2};
    if (!is_wide) return {2, 32, 1, 5, 4, 1, 2};
    return {4, channels <= 1024 ? 64 : 32, 1, 3, 8, 1, 2};
  }
  if (width <= 16 && is_few) return {4, 32, 1, 2, 4, 1, 3, false, 4};
  if (width <= 16 && is_wide && is_many && channels % 64 == 0) return {4, 64, 1, 2, 4, 1, 4, false, 2};
  if (width <= 16) return is_wide ? DepthwiseTiling{4, 32, 1, 4, 4, 1, 2} : DepthwiseTiling{2, 32, 1, 4, 2, 1, 2};
  if (width <= 32) return {2, wide_box, 1, 5, 1, 1, 3};
  if (width <= 64) {
    const bool is_ragged = channels % 32 != 0;
    return is_ragged ? DepthwiseTiling{4, wide_box, 1, is_many ? 3 : 4, 1, 1, 3}
                     : DepthwiseTiling{2, 32, 1, 2, 1, 1, 2};
  }
  return {7, 32, 1, 2, 1, 1, 3};
}

/// With what the pass makes of it: stages that there is room for, and clusters or none.
template <class Pass, class Tiling>
Config config_with(const Pass& pass, Tiling tiling) {
  tiling.stages = pass.stages();
  Config config = config_of(tiling);
  config[Knob::cluster] = pass.cluster();
  return config;
}

}  // namespace

Config depthwise_patches_input_prior(const DepthwiseBackwardArguments& a) {
  DepthwisePatching patching = choose_input_patching(a);
  if (!DepthwiseInputPatchesPass(a, patching).fits()) patching = {4, 4, 1, 1, 2};
  patching.stages = DepthwiseInputPatchesPass(a, patching).stages();
  return config_of(patching);
}

Config depthwise_patches_weight_prior(const DepthwiseBackwardArguments& a) {
  const DepthwisePatching patching = choose_weight_patching(a);
  return config_with(DepthwiseWeightPatchesPass(a, patching), patching);
}

Config depthwise_tiles_weight_prior(const DepthwiseBackwardArguments& a) {
  const DepthwiseTiling tiling = choose_weight_tiling(a);
  const DepthwiseWeightTilesPass pass(a, tiling);
  // Measured: smaller tiles where otherwise some blocks would have more units than others.
  if (a.window.kernel[0] == 5 && tiling.products == 4 && tiling.images == 4 && pass.evenness() < 0.75) {
    const DepthwiseTiling smaller{2, 32, 1, 9, 2, 1, 2};
    const DepthwiseWeightTilesPass other(a, smaller);
    if (other.evenness() > pass.evenness()) return config_with(other, smaller);
  }
  return config_with(pass, tiling);
}

bool wants_weight_segments(const DepthwiseBackwardArguments& a) {
  const std::int64_t channels = a.x.sizes[1], width = a.grad_y.sizes[3];
  if (width <= 16 || width > 64 || channels % 32 == 0 || channels > 72) return false;
  if (!has_dense_rows(a.x) || !has_dense_rows(a.grad_y)) return false;
  if (a.window.stride[0] == 1) return a.window.kernel[0] == 3;
  if (width > 32) return false;
  // Boxes of 64 channels do as well where they are mostly full.
  return a.window.kernel[0] == 5 ? channels > 64 : channels <= 40 || channels > 64;
}

}  // namespace fusedsc::gpu::hopper
#endif
