// Which kernel is taken forward, and with which config, where nothing is forced: the rules that measured best on an
// H200 (docs/log/performance_gpu_depthwise.md), until a table of measurements takes their place.
#include <algorithm>
#include <string_view>

#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise/columns/depthwise_columns_plan.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_plan.h"
#endif

namespace fusedsc::gpu {
namespace {

bool takes_direct(const DepthwiseArguments& a) {
  return depthwise_direct().unsupported(a).empty() && suits_depthwise_direct(a);
}

#ifdef FUSEDSC_HOPPER

/// Whether there is enough work to hide the latency of copies behind.
bool is_enough(std::int64_t elements) { return elements >= std::int64_t{4096} * multiprocessors(); }

bool has_patches(const DepthwiseArguments& a) { return hopper::depthwise_patches().unsupported(a).empty(); }

/// Tiles and patches.
bool takes_products(const DepthwiseArguments& a) {
  const bool has_patches = gpu::has_patches(a);
  if (!has_patches && !hopper::depthwise_tiles().unsupported(a).empty()) return false;
  const std::int64_t kernel = a.window.kernel[0], channels = a.x.sizes[1];
  // Measured: there is nothing to win on less, or on rows of positions that are a few parts of lines of memory.
  if (!is_enough(a.x.elements()) || takes_direct(a)) return false;
  if (channels % 32 != 0 && channels <= (kernel == 3 ? 128 : 64) && !(has_patches && hopper::wants_segments(a))) {
    return false;
  }
  const bool are_small = kernel == 3 && a.window.stride[0] == 2 && a.y.sizes[3] <= 8;
  return !(are_small && (has_patches || a.epilogue || a.y.sizes[0] < (a.prologue ? 128 : 32)));
}

bool takes_planes(const DepthwiseArguments& a) {
  // Measured: small planes of 16 bits are worth it earlier.
  const bool is_small = a.y.sizes[3] <= 8 && !a.statistics && size_of(a.x.dtype) == 2;
  return a.x.elements() >= hopper::least_elements_of_planes() / (is_small ? 2 : 1) &&
         hopper::fits_depthwise_planes(a, hopper::depthwise_planes_prior(a));
}

bool takes_columns(const DepthwiseArguments& a) {
  if (!is_enough(a.x.elements()) || !hopper::depthwise_columns().unsupported(a).empty()) return false;
  // Measured: with lanes left over, wide images of 3x3 windows are faster by rows.
  return a.window.kernel[0] != 3 || a.y.sizes[3] < 28 || a.x.sizes[1] % hopper::DepthwiseColumnsShape::kChannels == 0;
}

#endif

/// The kernel that is taken.
Kernel<DepthwiseArguments> kernel_for(const DepthwiseArguments& a) {
#ifdef FUSEDSC_HOPPER
  if (takes_products(a)) return has_patches(a) ? hopper::depthwise_patches() : hopper::depthwise_tiles();
#endif
  if (takes_direct(a)) return depthwise_direct();
#ifdef FUSEDSC_HOPPER
  if (takes_planes(a)) return hopper::depthwise_planes();
  if (takes_columns(a)) return hopper::depthwise_columns();
#endif
  if (depthwise_matrix().unsupported(a).empty() && suits_depthwise_matrix(a)) return depthwise_matrix();
  if (depthwise_rows().unsupported(a).empty()) return depthwise_rows();
  if (depthwise_windows().unsupported(a).empty()) return depthwise_windows();
  return depthwise_taps();
}

struct PriorConfig {
  std::string_view kernel;
  Config (*config)(const DepthwiseArguments&);
};

const PriorConfig kPriorConfigs[] = {
    {"gpu_direct", depthwise_direct_prior},
    {"gpu_matrix", depthwise_matrix_prior},
    {"gpu_rows", depthwise_rows_prior},
    {"gpu_windows", depthwise_windows_prior},
#ifdef FUSEDSC_HOPPER
    {"hopper_planes", hopper::depthwise_planes_prior},
    {"hopper_columns", hopper::depthwise_columns_prior},
    {"hopper_tiles", hopper::depthwise_tiles_prior},
    {"hopper_patches", hopper::depthwise_patches_prior},
#endif
};

}  // namespace

tuning::Choice<DepthwiseArguments> depthwise_prior(std::span<const Kernel<DepthwiseArguments>> kernels,
                                                   const DepthwiseArguments& a) {
  if (!why_not_on_gpu(a).empty()) return {};
  const Kernel<DepthwiseArguments>& kernel = tuning::kernel_named(kernels, kernel_for(a).name);
  return {&kernel, depthwise_prior_config(kernel, a)};
}

Config depthwise_prior_config(const Kernel<DepthwiseArguments>& kernel, const DepthwiseArguments& a) {
  for (const PriorConfig& prior : kPriorConfigs) {
    if (prior.kernel == kernel.name) return prior.config(a);
  }
  return kernel.configs(a).at(0);
}

#ifdef FUSEDSC_HOPPER

Config hopper::depthwise_planes_prior(const DepthwiseArguments& a) {
  const std::int64_t width = a.y.sizes[3];
  const bool is_large = a.window.kernel[0] == 5, is_strided = a.window.stride[0] == 2;
  const auto with = [&](const DepthwisePlanesTiling& tiling) {
    return config_of(tiling, lane_columns_of(width, is_strided ? 2 : 4));
  };
  if (is_strided) return with({.stages = 2});
  const bool is_small = width <= 8 && a.x.sizes[0] <= 32 && !a.statistics && size_of(a.x.dtype) == 2;
  if (is_small && !is_large) return with({.tile_bytes = 1536, .stages = 2, .warps = 2});
  if (width <= 8) return with({.tile_bytes = is_large ? 1536 : 3072, .stages = 2});
  if (width <= 16) return with({.tile_bytes = 3072, .stages = 3});
  if (width > 32) return with({.stages = 3});
  return is_large ? with({.tile_bytes = 3072, .stages = 3}) : with({.whole_bytes = 13312});
}

Config hopper::depthwise_columns_prior(const DepthwiseArguments& a) {
  const int columns = columns_of_warp(a.y.sizes[3]);
  return {{Knob::columns, columns}, {Knob::stages, columns > 7 ? 3 : 4}};
}

#endif

}  // namespace fusedsc::gpu
