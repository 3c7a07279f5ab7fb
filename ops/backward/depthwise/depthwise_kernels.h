/// The registry's entries of GPU kernels for the gradients of depthwise convolution; and the prior: which of them are
/// taken, and with which config, where nothing is forced.
#pragma once

#include <optional>
#include <string>

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc {

/// The entries of all gradients that are wanted, by a GPU or the CPU: what role "depthwise_conv2d.backward" has.
std::span<const tuning::Kernel<DepthwiseBackwardArguments>> depthwise_backward_kernels();

namespace gpu {

using tuning::Config;
using tuning::Configs;
using tuning::Kernel;
using tuning::Knob;

// -------------------------------------------------------------------------------------------- all that is wanted at
// once

/// The input gradient and the gradients of weight and bias, each by a kernel of its own.
Kernel<DepthwiseBackwardArguments> depthwise_separate();

// ----------------------------------------------------------------------------------------------------- input gradient

/// Small problems of stride 2: a thread has an output or a few. Channels and rows of a thread.
Kernel<DepthwiseBackwardArguments> depthwise_direct_input();
/// Square windows that are compiled in: rows of windows stay in registers. Channels and columns of a thread.
Kernel<DepthwiseBackwardArguments> depthwise_rows_input();
/// Any window whose tiles fit shared memory. Channels of a block, rows and columns of a tile.
Kernel<DepthwiseBackwardArguments> depthwise_windows_input();
/// Anything: each element by itself. Channels and columns of a thread.
Kernel<DepthwiseBackwardArguments> depthwise_taps_input();

/// Text made for the problem and compiled at run time: row data reuse with other windows and tilings.
Kernel<DepthwiseBackwardArguments> depthwise_generated_input();

/// The input gradient of stride 1 as a forward pass over grad_y, with the rotated weight; or without x where it
/// is none. The kernels of that pass are entries, too: forward_<name>.
DepthwiseArguments as_forward(const DepthwiseBackwardArguments& a);

// ------------------------------------------------------------------------------------- gradients of weight and bias

/// Small problems. Channels, rows, lanes, groups and splits.
Kernel<DepthwiseBackwardArguments> depthwise_direct_weight();
Kernel<DepthwiseBackwardArguments> depthwise_rows_weight();
Kernel<DepthwiseBackwardArguments> depthwise_windows_weight();
Kernel<DepthwiseBackwardArguments> depthwise_taps_weight();
/// Text made for the problem and compiled at run time: row data reuse with other windows and tilings.
Kernel<DepthwiseBackwardArguments> depthwise_generated_weight();

/// For Hopper GPUs. They have entries where FUSEDSC_HOPPER is defined.
namespace hopper {

/// channels_last, with what training fuses: both gradients at once; or of 16 bits at stride 2 the input's alone.
Kernel<DepthwiseBackwardArguments> depthwise_fused_gradients();
/// Contiguous, 3x3 at stride 1: both gradients at once.
Kernel<DepthwiseBackwardArguments> depthwise_planes_gradients();
/// Contiguous, stride 2.
Kernel<DepthwiseBackwardArguments> depthwise_planes_input();
/// 16 bits, channels_last, stride 2: tensor cores, a window's row as a banded matrix.
Kernel<DepthwiseBackwardArguments> depthwise_patches_input();
/// Contiguous.
Kernel<DepthwiseBackwardArguments> depthwise_planes_weight();
/// float32, channels_last.
Kernel<DepthwiseBackwardArguments> depthwise_columns_weight();
/// 16 bits, channels_last, stride 1, to 7x7: tensor cores, patches of one channel.
Kernel<DepthwiseBackwardArguments> depthwise_patches_weight();
/// 16 bits, channels_last: tensor cores, the diagonals of products of 8 channels.
Kernel<DepthwiseBackwardArguments> depthwise_tiles_weight();

}  // namespace hopper

/// Empty, or why no GPU kernel can run the arguments.
std::string why_not_on_gpu(const DepthwiseBackwardArguments& a);

/// The kernels of one gradient.
std::span<const Kernel<DepthwiseBackwardArguments>> depthwise_input_kernels();
std::span<const Kernel<DepthwiseBackwardArguments>> depthwise_weight_kernels();
/// As roles of the registry: "depthwise_conv2d.grad_input" and "depthwise_conv2d.grad_weight".
const tuning::Role<DepthwiseBackwardArguments>& depthwise_input_role();
const tuning::Role<DepthwiseBackwardArguments>& depthwise_weight_role();

// ------------------------------------------------------------------------------------------------------------- prior

/// What is taken on a GPU for all that is wanted, and where that is depthwise_separate() for each gradient; and the
/// config of a kernel that can run the arguments.
tuning::Choice<DepthwiseBackwardArguments> depthwise_backward_prior(
    std::span<const Kernel<DepthwiseBackwardArguments>> kernels, const DepthwiseBackwardArguments& a);
Config depthwise_backward_prior_config(const Kernel<DepthwiseBackwardArguments>& kernel,
                                       const DepthwiseBackwardArguments& a);
tuning::Choice<DepthwiseBackwardArguments> depthwise_input_prior(const DepthwiseBackwardArguments& a);
Config depthwise_input_prior_config(const Kernel<DepthwiseBackwardArguments>& kernel,
                                    const DepthwiseBackwardArguments& a);
tuning::Choice<DepthwiseBackwardArguments> depthwise_weight_prior(const DepthwiseBackwardArguments& a);
Config depthwise_weight_prior_config(const Kernel<DepthwiseBackwardArguments>& kernel,
                                     const DepthwiseBackwardArguments& a);

/// Whether the problem is small enough for depthwise_direct_input(), which can run it.
bool suits_depthwise_direct_input(const DepthwiseBackwardArguments& a);

// Of arguments that the kernel supports: what it is taken with.
Config depthwise_direct_input_prior(const DepthwiseBackwardArguments& a);
Config depthwise_rows_input_prior(const DepthwiseBackwardArguments& a);
Config depthwise_windows_input_prior(const DepthwiseBackwardArguments& a);
Config depthwise_direct_weight_prior(const DepthwiseBackwardArguments& a);
Config depthwise_rows_weight_prior(const DepthwiseBackwardArguments& a);
Config depthwise_windows_weight_prior(const DepthwiseBackwardArguments& a);

namespace hopper {

Config depthwise_fused_gradients_prior(const DepthwiseBackwardArguments& a);
/// Whether depthwise_planes_gradients() can run the arguments with that config.
bool fits_depthwise_planes_gradients(const DepthwiseBackwardArguments& a, const Config& config);
Config depthwise_planes_gradients_prior(const DepthwiseBackwardArguments& a);
/// Whether depthwise_planes_input() can run the arguments with that config.
bool fits_depthwise_planes_input(const DepthwiseBackwardArguments& a, const Config& config);
Config depthwise_planes_input_prior(const DepthwiseBackwardArguments& a);
Config depthwise_patches_input_prior(const DepthwiseBackwardArguments& a);
/// The config that depthwise_planes_weight() is taken with; nothing if the prior has none that fits.
std::optional<Config> fitting_depthwise_planes_weight(const DepthwiseBackwardArguments& a);
Config depthwise_planes_weight_prior(const DepthwiseBackwardArguments& a);
Config depthwise_columns_weight_prior(const DepthwiseBackwardArguments& a);
Config depthwise_patches_weight_prior(const DepthwiseBackwardArguments& a);
Config depthwise_tiles_weight_prior(const DepthwiseBackwardArguments& a);

/// Whether tiles of a weight's gradient would be rows of images, cut into segments: of few channels, which boxes of
/// them do not divide evenly.
bool wants_weight_segments(const DepthwiseBackwardArguments& a);

}  // namespace hopper
}  // namespace gpu
}  // namespace fusedsc
