/// The kernels of "gpu_fragments" of each gradient: which tiles there are, which is taken, and its launch.
#pragma once

#include "fusedsc/backward/pointwise/pointwise_kernels.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_tiles.h"
#include "fusedsc/forward/pointwise/fragments/pointwise_fragments_plan.h"

namespace fusedsc::gpu {

/// Empty, or why a problem's tensors are no whole runs of 16 bytes: those that its gradients need.
std::string why_no_whole_fragments(const PointwiseBackwardArguments& a);

/// Of the input gradient.
FragmentProblem input_fragment_problem_of(const PointwiseBackwardArguments& a);

/// Empty where nothing fits shared memory.
Configs pointwise_input_fragments(const PointwiseBackwardArguments& a);
Config cheapest_pointwise_input_fragments(const PointwiseBackwardArguments& a);
/// Throws Unsupported for a config that does not fit.
Plan<PointwiseBackwardArguments> plan_pointwise_input_fragments(const PointwiseBackwardArguments& a,
                                                                const Config& config);

/// Of weight and bias. Rows are outputs, columns channels; depth counts positions.
Configs pointwise_weight_fragments(const PointwiseBackwardArguments& a);
Config cheapest_pointwise_weight_fragments(const PointwiseBackwardArguments& a);
Plan<PointwiseBackwardArguments> plan_pointwise_weight_fragments(const PointwiseBackwardArguments& a,
                                                                 const Config& config);

}  // namespace fusedsc::gpu
