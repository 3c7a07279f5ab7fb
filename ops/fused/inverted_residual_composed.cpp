#include "fusedsc/fused/inverted_residual_composed.h"

#include "fusedsc/fused/inverted_residual_steps.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

using Seam = NormalisedTensor;
using GradientSeam = NormalisedGradient;

struct ComposedForward {
  InvertedResidualArguments block;
  Arena arena;
  bool expands;
  Seam expand_seam, dw_seam, project_seam;
  PointwiseArguments expand;
  DepthwiseArguments depthwise;
  PointwiseArguments project;
  BatchNormApplyArguments apply;

  ComposedForward(const InvertedResidualArguments& block_, void* workspace)
      : block(with_addresses(block_)),
        arena(workspace),
        expands(block.expand_weight),
        expand_seam(expands ? block.e : TensorView(), block.expand_bn, arena),
        dw_seam(block.d, block.dw_bn, arena),
        project_seam(block.p, block.project_bn, arena),
        expand(expand_of(block, expand_seam)),
        depthwise(depthwise_of(block, expand_seam, dw_seam)) {
    project.x = block.d;
    project.weight = block.project_weight;
    project.prologue = dw_seam.prologue(block.activation);
    project.y = block.p;
    project.allow_tf32 = block.allow_tf32;
    apply.x = block.p;
    apply.scale = project_seam.scale;
    apply.shift = project_seam.shift;
    if (block.residual) apply.residual = block.x;
    apply.out = block.y;
    if (block.training) project.statistics = project_seam.statistics();
  }

  struct Plans {
    Plan<PointwiseArguments> expand;  ///< empty without expansion
    Plan<DepthwiseArguments> depthwise;
    Plan<PointwiseArguments> project;
    Plan<BatchNormApplyArguments> apply;

    std::size_t workspace_bytes() const { return most_workspace_bytes(expand, depthwise, project, apply); }
  };

  Plans plan(int threads) const {
    return {expands ? plan_pointwise_conv2d(expand, threads) : Plan<PointwiseArguments>(),
            plan_depthwise_conv2d(depthwise, threads), plan_pointwise_conv2d(project, threads),
            plan_batch_norm_apply(apply, threads)};
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const Seam* seam : {&expand_seam, &dw_seam, &project_seam}) {
      if (!block.training) seam->finish_affine(rest);
    }
    if (expands) plans.expand.run(expand, rest);
    plans.depthwise.run(depthwise, rest);
    plans.project.run(project, rest);
    plans.apply.run(apply, rest);
  }
};

/// From the result's gradient to x's: each step leaves the next one's gradient at the output of a BatchNorm, and the
/// two sums with which that BatchNorm's backward happens on load. Steps that nothing asks for are left out.
struct ComposedBackward {
  InvertedResidualBackwardArguments wanted;
  const InvertedResidualArguments& block;
  Arena arena;
  InvertedResidualWants wants;
  bool wants_grad_d;
  GradientSeam expand_seam, dw_seam, project_seam;
  BatchNormReduceArguments reduce;
  PointwiseBackwardArguments project;
  DepthwiseBackwardArguments depthwise;
  PointwiseBackwardArguments expand;

  ComposedBackward(const InvertedResidualBackwardArguments& wanted_, void* workspace)
      : wanted(with_addresses(wanted_)),
        block(wanted.forward),
        arena(workspace),
        wants(wanted),
        wants_grad_d(wants.depthwise || wanted.grad_dw_bn.weight || wanted.grad_dw_bn.bias),
        expand_seam(block.expand_weight ? block.e : TensorView(), block.expand_bn, wanted.grad_expand_bn,
                    block.training, arena),
        dw_seam(block.d, block.dw_bn, wanted.grad_dw_bn, block.training, arena),
        project_seam(block.p, block.project_bn, wanted.grad_project_bn, block.training, arena),
        depthwise(depthwise_backward_of(wanted, wants, expand_seam, dw_seam)),
        expand(expand_backward_of(wanted, expand_seam)) {
    check(!wants_grad_d || wanted.grad_d, "grad_d: it is null, but the wanted gradients pass through it; give memory");
    reduce.x = block.p;
    reduce.grad_y = wanted.grad_y;
    reduce.scale = project_seam.scale;
    reduce.shift = project_seam.shift;
    reduce.sums = project_seam.sums();
    project.x = block.d;
    project.weight = block.project_weight;
    project.prologue = dw_seam.prologue(block.activation);
    project.grad_y = wanted.grad_y;
    project.gradient_prologue = project_seam.gradient_prologue(wanted.grad_y);
    project.grad_weight = wanted.grad_project_weight;
    project.allow_tf32 = block.allow_tf32;
    if (wants_grad_d) {
      project.grad_x = wanted.grad_d;
      project.sums = dw_seam.sums();
    }
  }

  bool wants_project() const { return wants_grad_d || wanted.grad_project_weight; }

  /// Those of what nothing asks for are empty.
  struct Plans {
    Plan<BatchNormReduceArguments> reduce;
    Plan<PointwiseBackwardArguments> project;
    Plan<DepthwiseBackwardArguments> depthwise;
    Plan<PointwiseBackwardArguments> expand;

    std::size_t workspace_bytes() const { return most_workspace_bytes(reduce, project, depthwise, expand); }
  };

  Plans plan(int threads) const {
    Plans plans;
    plans.reduce = plan_batch_norm_reduce(reduce, threads);
    if (wants_project()) plans.project = plan_pointwise_conv2d_backward(project, threads);
    if (wants.depthwise) plans.depthwise = plan_depthwise_conv2d_backward(depthwise, threads);
    if (wants.expand) plans.expand = plan_pointwise_conv2d_backward(expand, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const GradientSeam* seam : {&expand_seam, &dw_seam, &project_seam}) seam->finish_affine(rest);
    plans.reduce.run(reduce, rest);
    if (wants_project()) plans.project.run(project, rest);
    if (wants.depthwise) plans.depthwise.run(depthwise, rest);
    if (wants.expand) plans.expand.run(expand, rest);
  }
};

}  // namespace

Implementation<InvertedResidualArguments> inverted_residual_composed() {
  return composed<ComposedForward, InvertedResidualArguments>(
      [](const InvertedResidualArguments&) { return std::string(); });
}

Implementation<InvertedResidualBackwardArguments> inverted_residual_backward_composed() {
  return composed<ComposedBackward, InvertedResidualBackwardArguments>(
      [](const InvertedResidualBackwardArguments&) { return std::string(); });
}

}  // namespace fusedsc
