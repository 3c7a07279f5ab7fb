#include "fusedsc/fused/gated_residual/gated_residual_composed.h"

#include "fusedsc/forward/recomputed.h"
#include "fusedsc/fused/gated_residual/gated_residual_steps.h"
#include "fusedsc/fused/squeeze_excite.h"
#include "fusedsc/runtime/composed.h"

namespace fusedsc {
namespace {

GatedResidualArguments with_addresses(GatedResidualArguments gated) {
  const bool keeps_p = gated.block.training || gated.block.p;
  gated.block = with_addresses(gated.block);
  if (!keeps_p) gated.block.p = {};
  give_address(gated.z, gated.z);
  return gated;
}

/// As training has it.
template <class Convolution>
Convolution with_statistics(Convolution convolution, const NormalisedTensor& result) {
  convolution.statistics = result.statistics();
  return convolution;
}

struct Features {
  GatedResidualArguments gated;
  const InvertedResidualArguments& block;
  Arena arena;
  bool expands;
  NormalisedTensor expand_norm, dw_norm;
  PointwiseArguments expand;
  DepthwiseArguments depthwise;
  SqueezeArguments squeeze;

  Features(const GatedResidualArguments& gated_, void* workspace)
      : gated(with_addresses(gated_)),
        block(gated.block),
        arena(workspace),
        expands(block.expand_weight),
        expand_norm(expands ? block.e : TensorView(), block.expand_bn, arena),
        dw_norm(block.d, block.dw_bn, arena),
        expand(expand_of(block)),
        depthwise(depthwise_of(block, expand_norm)) {
    if (block.training) {
      expand = with_statistics(expand, expand_norm);
      depthwise = with_statistics(depthwise, dw_norm);
    }
    squeeze.x = block.d;
    squeeze.scale = dw_norm.scale;
    squeeze.shift = dw_norm.shift;
    squeeze.activation = block.activation;
    squeeze.mean = gated.mean;
  }

  struct Plans {
    Plan<PointwiseArguments> expand;  ///< empty without expansion
    Plan<DepthwiseArguments> depthwise;
    Plan<SqueezeArguments> squeeze;

    std::size_t workspace_bytes() const { return most_workspace_bytes(expand, depthwise, squeeze); }
  };

  Plans plan(int threads) const {
    Plans plans;
    if (block.repeats_training) {
      if (expands) plans.expand = plan_recomputed(expand, with_statistics(expand, expand_norm), threads);
      plans.depthwise = plan_recomputed(depthwise, with_statistics(depthwise, dw_norm), threads);
    } else {
      if (expands) plans.expand = plan_pointwise_conv2d(expand, threads);
      plans.depthwise = plan_depthwise_conv2d(depthwise, threads);
    }
    plans.squeeze = plan_squeeze(squeeze, threads);
    return plans;
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    for (const NormalisedTensor* norm : {&expand_norm, &dw_norm}) {
      if (!block.training) norm->finish_affine(rest);
    }
    if (expands) plans.expand.run(expand, rest);
    plans.depthwise.run(depthwise, rest);
    plans.squeeze.run(squeeze, rest);
  }
};

/// Where p is not wanted, the last BatchNorm and the residual are in the projection's epilogue.
struct Projection {
  GatedResidualArguments gated;
  const InvertedResidualArguments& block;
  Arena arena;
  NormalisedTensor dw_norm, project_norm;
  ExciteArguments excite;
  PointwiseArguments project;
  BatchNormApplyArguments apply;

  Projection(const GatedResidualArguments& gated_, void* workspace)
      : gated(with_addresses(gated_)),
        block(gated.block),
        arena(workspace),
        dw_norm(block.d, block.dw_bn, arena),
        project_norm(block.p ? block.p : block.y, block.project_bn, arena) {
    excite.x = block.d;
    excite.scale = dw_norm.scale;
    excite.shift = dw_norm.shift;
    excite.activation = block.activation;
    excite.gate = gated.gate;
    excite.out = gated.z;
    project.x = gated.z;
    project.weight = block.project_weight;
    project.allow_tf32 = block.allow_tf32;
    if (block.training) project = with_statistics(project, project_norm);
    if (!block.p) {
      project.y = block.y;
      project.epilogue.scale = project_norm.scale;
      project.epilogue.shift = project_norm.shift;
      if (block.residual) project.epilogue.residual = block.x;
      return;
    }
    project.y = block.p;
    apply.x = block.p;
    apply.scale = project_norm.scale;
    apply.shift = project_norm.shift;
    if (block.residual) apply.residual = block.x;
    apply.out = block.y;
  }

  struct Plans {
    Plan<ExciteArguments> excite;
    Plan<PointwiseArguments> project;
    Plan<BatchNormApplyArguments> apply;  ///< empty where p is not wanted

    std::size_t workspace_bytes() const { return most_workspace_bytes(excite, project, apply); }
  };

  Plans plan(int threads) const {
    return {plan_excite(excite, threads),
            block.repeats_training ? plan_recomputed(project, with_statistics(project, project_norm), threads)
                                   : plan_pointwise_conv2d(project, threads),
            block.p ? plan_batch_norm_apply(apply, threads) : Plan<BatchNormApplyArguments>()};
  }

  void run(const Plans& plans, const Execution& execution) const {
    const Execution rest = rest_of(execution, arena);
    dw_norm.finish_affine(rest);
    if (!block.training) project_norm.finish_affine(rest);
    plans.excite.run(excite, rest);
    plans.project.run(project, rest);
    if (block.p) plans.apply.run(apply, rest);
  }
};

std::string always(const GatedResidualArguments&) { return {}; }

}  // namespace

Implementation<GatedResidualArguments> gated_residual_features_composed() {
  return composed<Features, GatedResidualArguments>(always);
}

Implementation<GatedResidualArguments> gated_residual_projection_composed() {
  return composed<Projection, GatedResidualArguments>(always);
}

}  // namespace fusedsc
