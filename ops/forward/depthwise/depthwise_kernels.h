/// The registry's entries of GPU kernels for depthwise convolution, forward; and the prior: which of them is taken, and
/// with which config, where nothing is forced.
#pragma once

#include <string>

#include "fusedsc/forward/depthwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc::gpu {

using tuning::Config;
using tuning::Configs;
using tuning::Kernel;
using tuning::Knob;

/// Small problems: a thread has an output or a few. Channels and rows of a thread.
Kernel<DepthwiseArguments> depthwise_direct();
/// 5x5 at stride 1, 16 bits, channels_last, by tensor cores: a window's row is a banded matrix. Rows of a strip.
Kernel<DepthwiseArguments> depthwise_matrix();
/// Square windows that are compiled in: rows of windows stay in registers. Channels and columns of a thread.
Kernel<DepthwiseArguments> depthwise_rows();
/// Any window whose tiles fit shared memory. Channels of a block, rows and columns of a tile.
Kernel<DepthwiseArguments> depthwise_windows();
/// Anything: each output by itself. Channels and columns of a thread.
Kernel<DepthwiseArguments> depthwise_taps();
/// Text made for the problem and compiled at run time: row data reuse with other windows and tilings.
Kernel<DepthwiseArguments> depthwise_generated();

/// For Hopper GPUs. They have entries where FUSEDSC_HOPPER is defined.
namespace hopper {

/// Contiguous: warps have whole planes or strips of them side by side.
Kernel<DepthwiseArguments> depthwise_planes();
/// float32, channels_last: a warp has 32 channels of neighbouring columns.
Kernel<DepthwiseArguments> depthwise_columns();
/// 16 bits, channels_last, with anything fused: tensor cores, each weight on a diagonal.
Kernel<DepthwiseArguments> depthwise_tiles();
/// 16 bits, channels_last, to 7x7, with nothing fused: tensor cores, a window's row as a banded matrix.
Kernel<DepthwiseArguments> depthwise_patches();

}  // namespace hopper

/// All of them.
std::span<const Kernel<DepthwiseArguments>> depthwise_gpu_kernels();

/// Empty, or why no GPU kernel can run the arguments.
std::string why_not_on_gpu(const DepthwiseArguments& a);

// ------------------------------------------------------------------------------------------------------------- prior

/// What is taken on a GPU.
tuning::Choice<DepthwiseArguments> depthwise_prior(std::span<const Kernel<DepthwiseArguments>> kernels,
                                                   const DepthwiseArguments& a);
/// The config of a kernel that can run the arguments.
Config depthwise_prior_config(const Kernel<DepthwiseArguments>& kernel, const DepthwiseArguments& a);

/// Whether the problem is small enough for depthwise_direct(), which can run it.
bool suits_depthwise_direct(const DepthwiseArguments& a);
/// Likewise, whether it fills the tiles of depthwise_matrix().
bool suits_depthwise_matrix(const DepthwiseArguments& a);

// Of arguments that the kernel supports: what it is taken with.
Config depthwise_direct_prior(const DepthwiseArguments& a);
Config depthwise_matrix_prior(const DepthwiseArguments& a);
Config depthwise_rows_prior(const DepthwiseArguments& a);
Config depthwise_windows_prior(const DepthwiseArguments& a);

namespace hopper {

/// Whether depthwise_planes() can run the arguments with that config.
bool fits_depthwise_planes(const DepthwiseArguments& a, const Config& config);
Config depthwise_planes_prior(const DepthwiseArguments& a);
Config depthwise_columns_prior(const DepthwiseArguments& a);
Config depthwise_tiles_prior(const DepthwiseArguments& a);
Config depthwise_patches_prior(const DepthwiseArguments& a);

/// Whether tiles of whole rows in segments are best: where boxes of channels would be partly empty.
bool wants_segments(const DepthwiseArguments& a);

}  // namespace hopper
}  // namespace fusedsc::gpu
