// Which kernels are taken backward, and with which configs, where nothing is forced: the rules that measured best on an
// H200 (docs/log/performance_gpu_depthwise.md), until a table of measurements takes their place.
#include <string>
#include <string_view>

#include "fusedsc/backward/depthwise/depthwise_kernels.h"
#include "fusedsc/common/gpu/vendor/gpu.h"
#include "fusedsc/forward/depthwise/depthwise_kernels.h"
#ifdef FUSEDSC_HOPPER
#include "fusedsc/forward/depthwise/columns/depthwise_columns_plan.h"
#include "fusedsc/forward/depthwise/planes/depthwise_planes_plan.h"
#endif

namespace fusedsc::gpu {
namespace {

using BackwardKernel = Kernel<DepthwiseBackwardArguments>;
using BackwardChoice = tuning::Choice<DepthwiseBackwardArguments>;

bool can(const BackwardKernel& kernel, const DepthwiseBackwardArguments& a) { return kernel.unsupported(a).empty(); }

bool is_channels_last(const DepthwiseBackwardArguments& a) { return a.grad_y.strides[1] < a.grad_y.strides[3]; }

/// Whether so many multiplications, per multiprocessor, are as many as there are.
bool is_within(const DepthwiseBackwardArguments& a, std::int64_t most) {
  return a.window.kernel[0] * a.window.kernel[1] * a.grad_y.elements() <= most * multiprocessors();
}

bool takes_direct_input(const DepthwiseBackwardArguments& a) {
  return can(depthwise_direct_input(), a) && suits_depthwise_direct_input(a);
}

#ifdef FUSEDSC_HOPPER

std::optional<Config> takes_planes_weight(const DepthwiseBackwardArguments& a) {
  // Measured: few elements are worth it where blocks have several images.
  if (a.x.sizes[0] < 8 && a.x.elements() < hopper::least_elements_of_planes()) return {};
  return hopper::fitting_depthwise_planes_weight(a);
}

#endif

/// Whether there is a kernel whose tiles are small planes as a whole.
bool suits_small_planes([[maybe_unused]] const DepthwiseBackwardArguments& a) {
#ifdef FUSEDSC_HOPPER
  constexpr std::int64_t kMost = 28 * 28;
  return a.x.sizes[2] * a.x.sizes[3] <= kMost && takes_planes_weight(a).has_value();
#else
  return false;
#endif
}

bool takes_direct_weight(const DepthwiseBackwardArguments& a) {
  if (!can(depthwise_direct_weight(), a)) return false;
  const bool is_wide = size_of(a.x.dtype) > 2, is_small_window = a.window.kernel[0] == 3,
             halves = a.window.stride[0] > 1;
  if (is_channels_last(a)) {
    return is_within(a, !is_wide || !is_small_window ? 36'000 : halves ? 11'000 : 31'000);
  }
  if (!halves) return is_within(a, 45'000);
  // Planes are planned only where it depends on them.
  return is_within(a, is_wide && is_small_window ? 130'000 : 60'000) ||
         (is_within(a, 200'000) && !suits_small_planes(a));
}

#ifdef FUSEDSC_HOPPER

/// Whether there is enough work to hide the latency of copies behind.
bool is_enough(std::int64_t elements, std::int64_t each) { return elements >= each * multiprocessors(); }

bool takes_patches_input(const DepthwiseBackwardArguments& a) {
  return is_enough(a.grad_x.elements(), 24576) && can(hopper::depthwise_patches_input(), a);
}

bool takes_columns_weight(const DepthwiseBackwardArguments& a) {
  return is_enough(a.x.elements(), 4096) && can(hopper::depthwise_columns_weight(), a);
}

bool takes_patches_weight(const DepthwiseBackwardArguments& a) {
  if (!is_enough(a.grad_y.elements(), 4096) || !can(hopper::depthwise_patches_weight(), a)) return false;
  if (a.window.kernel[0] != 3) return !hopper::wants_weight_segments(a);
  // Not where images are small, nor where boxes of channels would be partly empty.
  const std::int64_t width = a.grad_y.sizes[3];
  return width > 16 && !hopper::wants_weight_segments(a) && !(width > 32 && width <= 64 && a.x.sizes[1] % 32 != 0);
}

/// Whether a kernel for each gradient, of threads with an output or a few, are faster than both by one.
bool suits_direct_gradients(const DepthwiseBackwardArguments& a) {
  if (!is_channels_last(a) || !can(depthwise_direct_weight(), a)) return false;
  const bool is_wide = size_of(a.x.dtype) > 2;
  if (a.window.stride[0] == 1) return is_within(a, is_wide ? 11'000 : 20'000);
  return is_within(a, is_wide ? 5'500 : 12'000);
}

bool takes_fused_gradients(const DepthwiseBackwardArguments& a) {
  if (!can(hopper::depthwise_fused_gradients(), a)) return false;
  if (a.grad_weight) return !suits_direct_gradients(a);
  return !takes_direct_input(a) && !takes_patches_input(a);
}

bool takes_planes_gradients(const DepthwiseBackwardArguments& a) {
  return a.x.elements() >= hopper::least_elements_of_planes() &&
         hopper::fits_depthwise_planes_gradients(a, hopper::depthwise_planes_gradients_prior(a));
}

bool takes_planes_input(const DepthwiseBackwardArguments& a) {
  return a.window.stride[0] == 2 && a.grad_x.elements() >= hopper::least_elements_of_planes() &&
         hopper::fits_depthwise_planes_input(a, hopper::depthwise_planes_input_prior(a));
}

#endif

/// The kernel that is taken for the input's gradient; of a forward pass its name alone.
std::string input_kernel_for(const DepthwiseBackwardArguments& a) {
  if (takes_direct_input(a)) return depthwise_direct_input().name;
  const DepthwiseArguments forward = as_forward(a);
#ifdef FUSEDSC_HOPPER
  if (takes_planes_input(a)) return hopper::depthwise_planes_input().name;
  if (takes_patches_input(a)) return hopper::depthwise_patches_input().name;
#endif
  if (forward.x) return std::string("forward_") + depthwise_prior(depthwise_gpu_kernels(), forward).kernel->name;
  if (can(depthwise_rows_input(), a)) return depthwise_rows_input().name;
  return can(depthwise_windows_input(), a) ? depthwise_windows_input().name : depthwise_taps_input().name;
}

BackwardKernel weight_kernel_for(const DepthwiseBackwardArguments& a) {
  if (takes_direct_weight(a)) return depthwise_direct_weight();
#ifdef FUSEDSC_HOPPER
  if (takes_planes_weight(a)) return hopper::depthwise_planes_weight();
  if (takes_columns_weight(a)) return hopper::depthwise_columns_weight();
  if (takes_patches_weight(a)) return hopper::depthwise_patches_weight();
  if (can(hopper::depthwise_tiles_weight(), a)) return hopper::depthwise_tiles_weight();
#endif
  if (can(depthwise_rows_weight(), a)) return depthwise_rows_weight();
  return can(depthwise_windows_weight(), a) ? depthwise_windows_weight() : depthwise_taps_weight();
}

struct PriorConfig {
  std::string_view kernel;
  Config (*config)(const DepthwiseBackwardArguments&);
};

template <std::size_t kSize>
Config config_for(const PriorConfig (&priors)[kSize], const BackwardKernel& kernel,
                  const DepthwiseBackwardArguments& a) {
  for (const PriorConfig& prior : priors) {
    if (prior.kernel == kernel.name) return prior.config(a);
  }
  return kernel.configs(a).at(0);
}

}  // namespace

BackwardChoice depthwise_backward_prior(std::span<const BackwardKernel> kernels, const DepthwiseBackwardArguments& a) {
  if (!why_not_on_gpu(a).empty()) return {};
  const auto choice = [&](const BackwardKernel& kernel, const Config& config) {
    return BackwardChoice{&tuning::kernel_named(kernels, kernel.name), config};
  };
#ifdef FUSEDSC_HOPPER
  // Whoever forces a gradient's kernel wants it to run.
  const bool is_forced = (a.grad_x && tuning::forced(depthwise_input_role().name)) ||
                         ((a.grad_weight || a.grad_bias) && tuning::forced(depthwise_weight_role().name));
  if (!is_forced && takes_fused_gradients(a))
    return choice(hopper::depthwise_fused_gradients(), hopper::depthwise_fused_gradients_prior(a));
  if (!is_forced && takes_planes_gradients(a)) {
    return choice(hopper::depthwise_planes_gradients(), hopper::depthwise_planes_gradients_prior(a));
  }
#endif
  return choice(depthwise_separate(), {});
}

Config depthwise_backward_prior_config(const BackwardKernel& kernel, const DepthwiseBackwardArguments& a) {
  static const PriorConfig priors[] = {
#ifdef FUSEDSC_HOPPER
      {"hopper_fused_gradients", hopper::depthwise_fused_gradients_prior},
      {"hopper_planes", hopper::depthwise_planes_gradients_prior},
#endif
      {"", nullptr},
  };
  return config_for(priors, kernel, a);
}

BackwardChoice depthwise_input_prior(const DepthwiseBackwardArguments& a) {
  if (!why_not_on_gpu(a).empty()) return {};
  const BackwardKernel& kernel = tuning::kernel_named(depthwise_input_kernels(), input_kernel_for(a));
  return {&kernel, depthwise_input_prior_config(kernel, a)};
}

Config depthwise_input_prior_config(const BackwardKernel& kernel, const DepthwiseBackwardArguments& a) {
  static const PriorConfig priors[] = {
      {"gpu_direct", depthwise_direct_input_prior},
      {"gpu_rows", depthwise_rows_input_prior},
      {"gpu_windows", depthwise_windows_input_prior},
#ifdef FUSEDSC_HOPPER
      {"hopper_planes", hopper::depthwise_planes_input_prior},
      {"hopper_patches", hopper::depthwise_patches_input_prior},
#endif
  };
  constexpr std::string_view kForward = "forward_";
  const std::string_view name = kernel.name;
  if (!name.starts_with(kForward)) return config_for(priors, kernel, a);
  return depthwise_prior_config(tuning::kernel_named(depthwise_gpu_kernels(), name.substr(kForward.size())),
                                as_forward(a));
}

BackwardChoice depthwise_weight_prior(const DepthwiseBackwardArguments& a) {
  if (!why_not_on_gpu(a).empty()) return {};
  const BackwardKernel& kernel = tuning::kernel_named(depthwise_weight_kernels(), weight_kernel_for(a).name);
  return {&kernel, depthwise_weight_prior_config(kernel, a)};
}

Config depthwise_weight_prior_config(const BackwardKernel& kernel, const DepthwiseBackwardArguments& a) {
  static const PriorConfig priors[] = {
      {"gpu_direct", depthwise_direct_weight_prior},
      {"gpu_rows", depthwise_rows_weight_prior},
      {"gpu_windows", depthwise_windows_weight_prior},
#ifdef FUSEDSC_HOPPER
      {"hopper_planes", hopper::depthwise_planes_weight_prior},
      {"hopper_columns", hopper::depthwise_columns_weight_prior},
      {"hopper_patches", hopper::depthwise_patches_weight_prior},
      {"hopper_tiles", hopper::depthwise_tiles_weight_prior},
#endif
  };
  return config_for(priors, kernel, a);
}

#ifdef FUSEDSC_HOPPER

/// Many warps, that wait each for its one tile.
Config hopper::depthwise_planes_gradients_prior(const DepthwiseBackwardArguments& a) {
  return config_of({.whole_bytes = 20000, .tile_bytes = 12288, .stages = 1}, lane_columns_of(a.grad_y.sizes[3], 4));
}

Config hopper::depthwise_planes_input_prior(const DepthwiseBackwardArguments& a) {
  return config_of({.stages = 3}, lane_columns_of(a.grad_y.sizes[3], 2));
}

Config hopper::depthwise_planes_weight_prior(const DepthwiseBackwardArguments& a) {
  const std::optional<Config> config = fitting_depthwise_planes_weight(a);
  return config ? *config : depthwise_planes_weight().configs(a).at(0);
}

Config hopper::depthwise_columns_weight_prior(const DepthwiseBackwardArguments& a) {
  return {{Knob::columns, columns_of_warp(a.grad_y.sizes[3])}, {Knob::stages, 6}};
}

#endif

}  // namespace fusedsc::gpu
