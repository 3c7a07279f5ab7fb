/// Where a launch of tiles finds an operator's arguments, of either gradient: first the problem, from which its tiles
/// are planned, then all else.
#pragma once

#include "fusedsc/backward/pointwise/tiles/pointwise_input_kernel.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_tiles.h"
#include "fusedsc/backward/pointwise/tiles/pointwise_weight_kernel.h"
#include "fusedsc/common/gpu/sums/partials_launch.h"
#include "fusedsc/runtime/arena.h"

namespace fusedsc::gpu {

inline constexpr const char* kPointwiseBackward = "pointwise_conv2d_backward";

/// What a gradient's kernel must be for, and what it multiplies.
struct PointwiseGradientProblem {
  PointwiseNeeds needs;
  PointwiseProblem product;
};

inline std::int64_t sum_bytes(const PointwiseBackwardArguments& a) {
  return static_cast<std::int64_t>(size_of(accumulation_type(a.x.dtype)));
}

inline PointwiseGradientProblem input_problem_of(const PointwiseBackwardArguments& a) {
  const bool inner = channels_inner(a.grad_y, a.grad_x);
  PointwiseGradientProblem problem{{a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), inner, {}},
                                   {a.x.dtype, inner, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                                    a.grad_y.sizes[1] / a.groups, a.x.sizes[1] / a.groups, a.groups}};
  PointwiseMemoryUse& use = problem.needs.use;
  use.fused = a.prologue || a.gradient_prologue || a.grad_add;
  (inner ? use.rows_other : use.cols_other) = static_cast<bool>(a.gradient_prologue);
  use.elements = has_elements(output_matrix(a.grad_x, a.groups, inner).run_bytes, a.x.sizes[1],
                              activation_matrix(a.grad_y, a.groups, inner).run_bytes, a.grad_y.sizes[1]);
  return problem;
}

inline PointwiseGradientProblem weight_problem_of(const PointwiseBackwardArguments& a) {
  const bool inner = channels_inner(a.x, a.grad_y);
  PointwiseGradientProblem problem{{a.x.dtype, uses_tf32(a.x.dtype, a.allow_tf32), inner, {}},
                                   {a.x.dtype, inner, a.x.sizes[0] * a.x.sizes[2] * a.x.sizes[3],
                                    a.x.sizes[1] / a.groups, a.grad_y.sizes[1] / a.groups, a.groups}};
  PointwiseMemoryUse& use = problem.needs.use;
  use.fused = a.prologue || a.gradient_prologue;
  use.rows_other = static_cast<bool>(a.gradient_prologue);
  use.elements = has_elements(activation_matrix(a.x, a.groups, inner).run_bytes, a.x.sizes[1],
                              activation_matrix(a.grad_y, a.groups, inner).run_bytes, a.grad_y.sizes[1]);
  return problem;
}

/// `planned`: by plan_product().
inline PointwiseInputGradientParameters input_parameters_of(const PointwiseBackwardArguments& a, bool channels_inner,
                                                            const PointwiseProductParameters& planned, Arena& arena) {
  PointwiseInputGradientParameters p;
  p.product = planned;
  p.product.activations = activation_matrix(a.grad_y, a.groups, channels_inner);
  p.product.weight = weight_matrix(a.weight, a.groups);
  p.product.prologue = gradient_prologue_of_operand(a, channels_inner);
  if (a.prologue) p.x = activation_matrix(a.x, a.groups, channels_inner);
  p.grad_add = activation_matrix(a.grad_add, a.groups, channels_inner);
  p.grad_x = output_matrix(a.grad_x, a.groups, channels_inner);
  p.prologue = {a.prologue.scale.data, a.prologue.shift.data, a.prologue.activation};
  p.mean = a.sums.mean.data;
  if (a.sums) p.partials = arena.take<char>(2 * planned.splits * a.x.sizes[1] * sum_bytes(a));
  return p;
}

/// What comes behind the kernel.
inline void launch_sums(const PointwiseBackwardArguments& a, const PointwiseInputGradientParameters& p, void* stream) {
  if (!a.sums) return;
  launch_gradient_sums(kPointwiseBackward, p.partials, p.product.splits, a.sums, a.x, stream);
}

inline PointwiseWeightGradientParameters weight_parameters_of(const PointwiseBackwardArguments& a,
                                                              const PointwiseProblem& problem,
                                                              const WeightGradientPlan& plan, Arena& arena) {
  const bool inner = problem.channels_inner;
  PointwiseWeightGradientParameters p;
  p.grad_y = activation_matrix(a.grad_y, a.groups, inner);
  p.x = activation_matrix(a.x, a.groups, inner);
  p.grad_y_prologue = gradient_prologue_of_operand(a, inner);
  p.x_prologue = {a.prologue.scale.data, a.prologue.shift.data, nullptr, a.prologue.activation, {}};
  p.pixels = static_cast<int>(problem.pixels);
  p.outputs = static_cast<int>(problem.channels);
  p.channels = static_cast<int>(problem.depth);
  p.groups = static_cast<int>(problem.groups);
  p.output_tiles = plan.output_tiles;
  p.channel_tiles = plan.channel_tiles;
  p.splits = plan.splits;
  p.split_steps = plan.split_steps;
  p.by_channel_tiles = Divisor(static_cast<std::uint32_t>(plan.channel_tiles));
  p.by_output_tiles = Divisor(static_cast<std::uint32_t>(plan.output_tiles));
  p.by_splits = Divisor(static_cast<std::uint32_t>(plan.splits));
  if (a.grad_weight && p.splits == 1) p.weight = weight_output_matrix(a.grad_weight, a.groups);
  else if (a.grad_weight) p.partials = arena.take<char>(p.splits * a.weight.elements() * sum_bytes(a));
  if (a.grad_bias) p.bias_partials = arena.take<char>(p.splits * a.grad_y.sizes[1] * sum_bytes(a));
  return p;
}

inline void launch_sums(const PointwiseBackwardArguments& a, const PointwiseWeightGradientParameters& p, void* stream) {
  const auto outputs = static_cast<int>(a.grad_y.sizes[1]);
  if (p.partials != nullptr) {
    SumPartialsParameters sum;
    sum.partials = p.partials;
    sum.splits = p.splits;
    sum.taps = sum.rows = outputs;
    sum.channels = p.channels;
    sum.weight.data = a.grad_weight.data;  // rows are outputs
    sum.weight.image = a.grad_weight.strides[1];
    sum.weight.row = a.grad_weight.strides[0];
    launch_sum_partials(kPointwiseBackward, a.x.dtype, sum, stream);
  }
  if (p.bias_partials != nullptr) {
    SumPartialsParameters sum;
    sum.partials = p.bias_partials;
    sum.splits = p.splits;
    sum.rows = 1;
    sum.channels = outputs;
    sum.bias = a.grad_bias.data;
    launch_sum_partials(kPointwiseBackward, a.x.dtype, sum, stream);
  }
}

}  // namespace fusedsc::gpu
