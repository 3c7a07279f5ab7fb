#include "fusedsc/fused/gated_residual/gated_residual_composed.h"
#include "fusedsc/fused/gated_residual/gated_residual_steps.h"
#include "fusedsc/fused/squeeze_excite.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

GatedResidualBackwardArguments with_addresses(GatedResidualBackwardArguments wanted) {
  wanted.block = with_addresses(wanted.block);
  return wanted;
}

/// From the result's gradient to the gate's.
struct ProjectionBackward {
  GatedResidualBackwardArguments wanted;
  const InvertedResidualArguments& block;
  Arena arena;
  bool wants_grad_z, wants_project;
  NormalisedGradient project_norm;
  NormalisedTensor dw_norm;
  BatchNormReduceArguments reduce;
  PointwiseBackwardArguments project;
  ExciteBackwardArguments excite;

  ProjectionBackward(const GatedResidualBackwardArguments& wanted_, void* workspace)
      : wanted(with_addresses(wanted_)),
        block(wanted.block.forward),
        arena(workspace),
        wants_grad_z(wanted.block.grad_d),
        wants_project(wants_grad_z || wanted.block.grad_project_weight),
        project_norm(block.p, block.project_bn, wanted.block.grad_project_bn, block.training, arena),
        dw_norm(block.d, block.dw_bn, arena) {
    check(!wanted.grad_gate || wants_grad_z, "grad_d: it is null, but the gate's gradient is wanted; give memory");
    reduce.x = block.p;
    reduce.grad_y = wanted.block.grad_y;
    reduce.scale = project_norm.scale;
    reduce.shift = project_norm.shift;
    reduce.sums = project_norm.sums();
    project.x = wanted.z;
    project.weight = block.project_weight;
    project.grad_y = wanted.block.grad_y;
    project.gradient_prologue = project_norm.gradient_prologue(wanted.block.grad_y);
    project.grad_weight = wanted.block.grad_project_weight;
    project.grad_x = wanted.block.grad_d;
    project.allow_tf32 = block.allow_tf32;
    excite.x = block.d;
    excite.grad_out = wanted.block.grad_d;
    excite.scale = dw_norm.scale;
    excite.shift = dw_norm.shift;
    excite.activation = block.activation;
    excite.grad_gate = wanted.grad_gate;
  }

  /// Those of what nothing asks for are empty.
  struct Plans {
    Plan<BatchNormReduceArguments> reduce;
    Plan<PointwiseBackwardArguments> project;
    Plan<ExciteBackwardArguments> excite;

    std::size_t workspace_bytes() const { return most_workspace_bytes(reduce, project, excite); }
  };

  Plans plan(int threads) const {
    Plans plans;
    plans.reduce = plan_batch_norm_reduce(reduce, threads);
    if (wants_project) plans.project = plan_pointwise_conv2d_backward(project, threads);
    if (wanted.grad_gate) plans.excite = plan_excite_backward(excite, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    project_norm.finish_affine(rest);
    if (wanted.grad_gate) dw_norm.finish_affine(rest);
    plans.reduce.run(reduce, rest);
    if (wants_project) plans.project.run(project, rest);
    if (wanted.grad_gate) plans.excite.run(excite, rest);
  }
};

/// From the gradients at z and at the means to x's. Steps that nothing asks for are left out.
struct FeaturesBackward {
  GatedResidualBackwardArguments wanted;
  const InvertedResidualArguments& block;
  Arena arena;
  InvertedResidualWants wants;
  NormalisedGradient expand_norm, dw_norm;
  SqueezeBackwardArguments squeeze;
  DepthwiseBackwardArguments depthwise;
  PointwiseBackwardArguments expand;

  FeaturesBackward(const GatedResidualBackwardArguments& wanted_, void* workspace)
      : wanted(with_addresses(wanted_)),
        block(wanted.block.forward),
        arena(workspace),
        wants(wanted.block),
        expand_norm(block.expand_weight ? block.e : TensorView(), block.expand_bn, wanted.block.grad_expand_bn,
                    block.training, arena),
        dw_norm(block.d, block.dw_bn, wanted.block.grad_dw_bn, block.training, arena),
        depthwise(depthwise_backward_of(wanted.block, wants, expand_norm, dw_norm)),
        expand(expand_backward_of(wanted.block, expand_norm)) {
    check(static_cast<bool>(wanted.block.grad_d), "grad_d: it is null; give the gradient at z");
    squeeze.x = block.d;
    squeeze.grad_out = wanted.block.grad_d;
    squeeze.gate = wanted.gate;
    squeeze.grad_mean = wanted.grad_mean;
    squeeze.scale = dw_norm.scale;
    squeeze.shift = dw_norm.shift;
    squeeze.activation = block.activation;
    squeeze.grad = wanted.block.grad_d;
    squeeze.sums = dw_norm.sums();
  }

  /// Those of what nothing asks for are empty.
  struct Plans {
    Plan<SqueezeBackwardArguments> squeeze;
    Plan<DepthwiseBackwardArguments> depthwise;
    Plan<PointwiseBackwardArguments> expand;

    std::size_t workspace_bytes() const { return most_workspace_bytes(squeeze, depthwise, expand); }
  };

  Plans plan(int threads) const {
    Plans plans;
    plans.squeeze = plan_squeeze_backward(squeeze, threads);
    if (wants.depthwise) plans.depthwise = plan_depthwise_conv2d_backward(depthwise, threads);
    if (wants.expand) plans.expand = plan_pointwise_conv2d_backward(expand, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const NormalisedGradient* norm : {&expand_norm, &dw_norm}) norm->finish_affine(rest);
    plans.squeeze.run(squeeze, rest);
    if (wants.depthwise) plans.depthwise.run(depthwise, rest);
    if (wants.expand) plans.expand.run(expand, rest);
  }
};

std::string always(const GatedResidualBackwardArguments&) { return {}; }

}  // namespace

Implementation<GatedResidualBackwardArguments> gated_residual_projection_backward_composed() {
  return composed<ProjectionBackward, GatedResidualBackwardArguments>(always);
}

Implementation<GatedResidualBackwardArguments> gated_residual_features_backward_composed() {
  return composed<FeaturesBackward, GatedResidualBackwardArguments>(always);
}

}  // namespace fusedsc
