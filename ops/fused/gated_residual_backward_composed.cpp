#include "fusedsc/backward/depthwise.h"
#include "fusedsc/backward/pointwise.h"
#include "fusedsc/common/status.h"
#include "fusedsc/fused/gated_residual_composed.h"
#include "fusedsc/fused/inverted_residual_seams.h"
#include "fusedsc/fused/squeeze_excite.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

using Seam = InvertedResidualSeam;
using GradientSeam = InvertedResidualGradientSeam;

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
  GradientSeam project_seam;
  Seam dw_seam;
  BatchNormReduceArguments reduce;
  PointwiseBackwardArguments project;
  ExciteBackwardArguments excite;

  ProjectionBackward(const GatedResidualBackwardArguments& wanted_, void* workspace)
      : wanted(with_addresses(wanted_)),
        block(wanted.block.forward),
        arena(workspace),
        wants_grad_z(wanted.block.grad_d),
        wants_project(wants_grad_z || wanted.block.grad_project_weight),
        project_seam(block.p, block.project_bn, wanted.block.grad_project_bn, block.training, arena),
        dw_seam(block.d, block.dw_bn, arena) {
    check(!wanted.grad_gate || wants_grad_z, "grad_d: it is null, but the gate's gradient is wanted; give memory");
    reduce.x = block.p;
    reduce.grad_y = wanted.block.grad_y;
    reduce.scale = project_seam.scale;
    reduce.shift = project_seam.shift;
    reduce.sums = project_seam.sums();
    project.x = wanted.z;
    project.weight = block.project_weight;
    project.grad_y = wanted.block.grad_y;
    project.gradient_prologue = project_seam.gradient_prologue();
    project.grad_weight = wanted.block.grad_project_weight;
    project.grad_x = wanted.block.grad_d;
    project.allow_tf32 = block.allow_tf32;
    excite.x = block.d;
    excite.grad_out = wanted.block.grad_d;
    excite.scale = dw_seam.scale;
    excite.shift = dw_seam.shift;
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
    project_seam.finish_affine(rest);
    if (wanted.grad_gate) dw_seam.finish_affine(rest);
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
  bool expands, wants_expand, wants_grad_e, wants_depthwise;
  GradientSeam expand_seam, dw_seam;
  SqueezeBackwardArguments squeeze;
  DepthwiseBackwardArguments depthwise;
  PointwiseBackwardArguments expand;

  FeaturesBackward(const GatedResidualBackwardArguments& wanted_, void* workspace)
      : wanted(with_addresses(wanted_)),
        block(wanted.block.forward),
        arena(workspace),
        expands(block.expand_weight),
        wants_expand(expands && (wanted.block.grad_x || wanted.block.grad_expand_weight)),
        wants_grad_e(wants_expand ||
                     (expands && (wanted.block.grad_expand_bn.weight || wanted.block.grad_expand_bn.bias))),
        wants_depthwise(wants_grad_e || wanted.block.grad_x || wanted.block.grad_dw_weight),
        expand_seam(expands ? block.e : TensorView(), block.expand_bn, wanted.block.grad_expand_bn, block.training,
                    arena),
        dw_seam(block.d, block.dw_bn, wanted.block.grad_dw_bn, block.training, arena) {
    const InvertedResidualBackwardArguments& gradients = wanted.block;
    check(static_cast<bool>(gradients.grad_d), "grad_d: it is null; give the gradient at z");
    check(!wants_grad_e || gradients.grad_e,
          "grad_e: it is null, but the wanted gradients pass through it; give memory");
    squeeze.x = block.d;
    squeeze.grad_out = gradients.grad_d;
    squeeze.gate = wanted.gate;
    squeeze.grad_mean = wanted.grad_mean;
    squeeze.scale = dw_seam.scale;
    squeeze.shift = dw_seam.shift;
    squeeze.activation = block.activation;
    squeeze.grad = gradients.grad_d;
    squeeze.sums = dw_seam.sums();
    depthwise.x = expands ? ConstTensorView(block.e) : block.x;
    depthwise.weight = block.dw_weight;
    depthwise.window = block.window;
    depthwise.grad_y = gradients.grad_d;
    depthwise.gradient_prologue = dw_seam.gradient_prologue();
    depthwise.grad_weight = gradients.grad_dw_weight;
    if (expands) depthwise.prologue = expand_seam.prologue(block.activation);
    if (wants_grad_e) {
      depthwise.grad_x = gradients.grad_e;
      depthwise.sums = expand_seam.sums();
    } else if (!expands && gradients.grad_x) {
      depthwise.grad_x = gradients.grad_x;
      if (block.residual) depthwise.grad_add = gradients.grad_y;
    }
    expand.x = block.x;
    expand.weight = block.expand_weight;
    expand.grad_y = gradients.grad_e;
    expand.gradient_prologue = expand_seam.gradient_prologue();
    expand.gradient_prologue.output_is_of_x = true;
    expand.grad_weight = gradients.grad_expand_weight;
    expand.grad_x = gradients.grad_x;
    if (block.residual && gradients.grad_x) expand.grad_add = gradients.grad_y;
    expand.allow_tf32 = block.allow_tf32;
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
    if (wants_depthwise) plans.depthwise = plan_depthwise_conv2d_backward(depthwise, threads);
    if (wants_expand) plans.expand = plan_pointwise_conv2d_backward(expand, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const GradientSeam* seam : {&expand_seam, &dw_seam}) seam->finish_affine(rest);
    plans.squeeze.run(squeeze, rest);
    if (wants_depthwise) plans.depthwise.run(depthwise, rest);
    if (wants_expand) plans.expand.run(expand, rest);
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
