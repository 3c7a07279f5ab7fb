/// The kernels of "gpu_tiles", for any GPU, of each gradient: which tiles there are, which is taken, and its launch.
#pragma once

#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/forward/pointwise/tiles/pointwise_plan.h"

namespace fusedsc::gpu {

using tuning::Config;
using tuning::Configs;

Configs pointwise_input_tiles(const PointwiseBackwardArguments& a);
Config cheapest_pointwise_input_tile(const PointwiseBackwardArguments& a);
/// Throws Unsupported for a config that does not fit.
Plan<PointwiseBackwardArguments> plan_pointwise_input_tiles(const PointwiseBackwardArguments& a, const Config& config);

/// Of weight and bias. Rows are outputs, columns channels; depth counts positions.
Configs pointwise_weight_tiles(const PointwiseBackwardArguments& a);
Config cheapest_pointwise_weight_tile(const PointwiseBackwardArguments& a);
Plan<PointwiseBackwardArguments> plan_pointwise_weight_tiles(const PointwiseBackwardArguments& a, const Config& config);

inline PointwisePrologue gradient_prologue_of_operand(const PointwiseBackwardArguments& a, bool channels_inner) {
  const GradientPrologue& prologue = a.gradient_prologue;
  return {prologue.grad_scale.data, prologue.offset.data, prologue.output_scale.data, Activation::identity,
          activation_matrix(prologue.output, a.groups, channels_inner)};
}

}  // namespace fusedsc::gpu
