/// The registry's entries of GPU kernels for pointwise convolution, forward; and the prior: which of them is taken, and
/// with which config, where nothing is forced.
#pragma once

#include <string>

#include "fusedsc/forward/pointwise.h"
#include "fusedsc/tuning/role.h"

namespace fusedsc::gpu {

using tuning::Config;
using tuning::Configs;
using tuning::Kernel;
using tuning::Knob;

/// To one output, whatever the GPU.
Kernel<PointwiseArguments> pointwise_skinny();
/// Anything, whatever the GPU: tiles of a matrix product, of rows, columns and depth; groups of warps share the depth.
Kernel<PointwiseArguments> pointwise_tiles();
/// Text made for the problem and compiled at run time: channel distribution, or tiles or fragments of other sizes.
Kernel<PointwiseArguments> pointwise_generated();
/// 16 bits or TF32, channels_last, by products of 32 threads: rows and columns of a block, warps that share k, stages;
/// the depth of a stage, where the weight comes in stages.
Kernel<PointwiseArguments> pointwise_fragments();

/// By TMA and the warpgroup products of Hopper GPUs. They have entries where FUSEDSC_HOPPER is defined. A tile's rows
/// are positions; warpgroups share its depth.
namespace hopper {

// channels_last. A block keeps its weight in shared memory; groups and clusters share the depth of each tile; tiles are
// bytes as they lie in memory, with all channels.
Kernel<PointwiseArguments> pointwise_resident();
Kernel<PointwiseArguments> pointwise_sliced_k();
Kernel<PointwiseArguments> pointwise_rows();

// Contiguous: likewise.
Kernel<PointwiseArguments> pointwise_planes_resident();
Kernel<PointwiseArguments> pointwise_planes_sliced_k();

}  // namespace hopper

/// All of them.
std::span<const Kernel<PointwiseArguments>> pointwise_gpu_kernels();

// ------------------------------------------------------------------------------------------------------------- prior

/// What is taken on a GPU: the first family that can, and of Hopper's the tile whose costs are the least.
tuning::Choice<PointwiseArguments> pointwise_prior(std::span<const Kernel<PointwiseArguments>> kernels,
                                                   const PointwiseArguments& a);
/// The config of a kernel that can run the arguments.
Config pointwise_prior_config(const Kernel<PointwiseArguments>& kernel, const PointwiseArguments& a);

/// A kernel and its config.
struct NamedChoice {
  const char* kernel = nullptr;  ///< null: none can
  Config config;
};

// Of arguments that the kernel supports: what it is taken with.
Config pointwise_tiles_prior(const PointwiseArguments& a);
Config pointwise_fragments_prior(const PointwiseArguments& a);

namespace hopper {

/// Of the kernels for channels_last tensors.
NamedChoice pointwise_nhwc_prior(const PointwiseArguments& a);
Config pointwise_resident_prior(const PointwiseArguments& a);
Config pointwise_sliced_k_prior(const PointwiseArguments& a);
Config pointwise_rows_prior(const PointwiseArguments& a);
/// Of those for contiguous ones.
NamedChoice pointwise_planes_prior(const PointwiseArguments& a);
Config pointwise_planes_resident_prior(const PointwiseArguments& a);
Config pointwise_planes_sliced_k_prior(const PointwiseArguments& a);

/// Empty, or why none of the kernels for channels_last tensors can run the arguments.
std::string why_not_nhwc(const PointwiseArguments& a);
/// By the cheapest of them.
Plan<PointwiseArguments> plan_nhwc(const PointwiseArguments& a);

}  // namespace hopper
}  // namespace fusedsc::gpu
