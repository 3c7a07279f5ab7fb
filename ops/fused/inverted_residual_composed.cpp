#include "fusedsc/fused/inverted_residual_composed.h"

#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/inverted_residual_seams.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

using Seam = InvertedResidualSeam;
using GradientSeam = InvertedResidualGradientSeam;

struct ComposedForward {
  InvertedResidualArguments block;
  Arena arena;
  bool expands;
  Seam expand_seam, dw_seam, project_seam;
  PointwiseArguments expand, project;
  DepthwiseArguments depthwise;
  BatchNormApplyArguments apply;

  ComposedForward(const InvertedResidualArguments& block_, void* workspace)
      : block(with_addresses(block_)),
        arena(workspace),
        expands(block.expand_weight),
        expand_seam(expands ? block.e : TensorView(), block.expand_bn, arena),
        dw_seam(block.d, block.dw_bn, arena),
        project_seam(block.p, block.project_bn, arena) {
    expand.x = block.x;
    expand.weight = block.expand_weight;
    expand.y = block.e;
    depthwise.x = expands ? ConstTensorView(block.e) : block.x;
    depthwise.weight = block.dw_weight;
    depthwise.window = block.window;
    if (expands) depthwise.prologue = expand_seam.prologue(block.activation);
    depthwise.y = block.d;
    project.x = block.d;
    project.weight = block.project_weight;
    project.prologue = dw_seam.prologue(block.activation);
    project.y = block.p;
    expand.allow_tf32 = project.allow_tf32 = block.allow_tf32;
    apply.x = block.p;
    apply.scale = project_seam.scale;
    apply.shift = project_seam.shift;
    if (block.residual) apply.residual = block.x;
    apply.out = block.y;
    if (!block.training) return;
    if (expands) expand.statistics = expand_seam.statistics();
    depthwise.statistics = dw_seam.statistics();
    project.statistics = project_seam.statistics();
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
      if (seam->raw && !block.training) batch_norm_finalize(seam->affine(), rest);
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
  bool expands, wants_expand, wants_grad_e, wants_depthwise, wants_grad_d;
  GradientSeam expand_seam, dw_seam, project_seam;
  BatchNormReduceArguments reduce;
  PointwiseBackwardArguments project, expand;
  DepthwiseBackwardArguments depthwise;

  ComposedBackward(const InvertedResidualBackwardArguments& wanted_, void* workspace)
      : wanted(with_addresses(wanted_)),
        block(wanted.forward),
        arena(workspace),
        expands(block.expand_weight),
        wants_expand(expands && (wanted.grad_x || wanted.grad_expand_weight)),
        wants_grad_e(wants_expand || (expands && (wanted.grad_expand_bn.weight || wanted.grad_expand_bn.bias))),
        wants_depthwise(wants_grad_e || wanted.grad_x || wanted.grad_dw_weight),
        wants_grad_d(wants_depthwise || wanted.grad_dw_bn.weight || wanted.grad_dw_bn.bias),
        expand_seam(expands ? block.e : TensorView(), block.expand_bn, wanted.grad_expand_bn, block.training, arena),
        dw_seam(block.d, block.dw_bn, wanted.grad_dw_bn, block.training, arena),
        project_seam(block.p, block.project_bn, wanted.grad_project_bn, block.training, arena) {
    check(!wants_grad_d || wanted.grad_d, "grad_d: it is null, but the wanted gradients pass through it; give memory");
    check(!wants_grad_e || wanted.grad_e, "grad_e: it is null, but the wanted gradients pass through it; give memory");
    reduce.x = block.p;
    reduce.grad_y = wanted.grad_y;
    reduce.scale = project_seam.scale;
    reduce.shift = project_seam.shift;
    reduce.sums = project_seam.sums();
    project.x = block.d;
    project.weight = block.project_weight;
    project.prologue = dw_seam.prologue(block.activation);
    project.grad_y = wanted.grad_y;
    project.gradient_prologue = project_seam.gradient_prologue();
    project.grad_weight = wanted.grad_project_weight;
    expand.allow_tf32 = project.allow_tf32 = block.allow_tf32;
    if (wants_grad_d) {
      project.grad_x = wanted.grad_d;
      project.sums = dw_seam.sums();
    }
    depthwise.x = expands ? ConstTensorView(block.e) : block.x;
    depthwise.weight = block.dw_weight;
    depthwise.window = block.window;
    depthwise.grad_y = wanted.grad_d;
    depthwise.gradient_prologue = dw_seam.gradient_prologue();
    depthwise.grad_weight = wanted.grad_dw_weight;
    if (expands) depthwise.prologue = expand_seam.prologue(block.activation);
    if (wants_grad_e) {
      depthwise.grad_x = wanted.grad_e;
      depthwise.sums = expand_seam.sums();
    } else if (!expands && wanted.grad_x) {
      depthwise.grad_x = wanted.grad_x;
      if (block.residual) depthwise.grad_add = wanted.grad_y;
    }
    expand.x = block.x;
    expand.weight = block.expand_weight;
    expand.grad_y = wanted.grad_e;
    expand.gradient_prologue = expand_seam.gradient_prologue();
    expand.gradient_prologue.output_is_of_x = true;
    expand.grad_weight = wanted.grad_expand_weight;
    expand.grad_x = wanted.grad_x;
    if (block.residual && wanted.grad_x) expand.grad_add = wanted.grad_y;
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
    if (wants_depthwise) plans.depthwise = plan_depthwise_conv2d_backward(depthwise, threads);
    if (wants_expand) plans.expand = plan_pointwise_conv2d_backward(expand, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const GradientSeam* seam : {&expand_seam, &dw_seam, &project_seam}) seam->finish_affine(rest);
    plans.reduce.run(reduce, rest);
    if (wants_project()) plans.project.run(project, rest);
    if (wants_depthwise) plans.depthwise.run(depthwise, rest);
    if (wants_expand) plans.expand.run(expand, rest);
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
