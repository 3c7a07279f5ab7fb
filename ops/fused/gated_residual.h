/// The inverted residual with squeeze-excite: [1x1 expand -> BN -> act ->] DW -> BN -> act -> times a gate per image
/// and channel -> 1x1 project -> BN [+ x]. The gate follows from the mean of each channel of what it multiplies by;
/// what is between the two, [N, E, 1, 1], is small and the caller's. Hence halves: up to the means, and from the gates
/// on.
#pragma once

#include <cstddef>
#include <vector>

#include "fusedsc/fused/inverted_residual.h"

namespace fusedsc {

struct GatedResidualArguments {
  /// As of an inverted residual without a gate. d is always wanted, e with an expansion; p is not in eval mode where
  /// its data is null.
  InvertedResidualArguments block;
  TensorView mean;       ///< [N, E, 1, 1] the first half's: of the activated depthwise output over its positions
  ConstTensorView gate;  ///< [N, E, 1, 1] the second half's
  TensorView z;          ///< [N, E, OH, OW] the second half's: the activated depthwise output times the gate, written
};

/// Writes e, d, the mean and what belongs to the first two BatchNorms.
void gated_residual_features(const GatedResidualArguments& arguments, const Execution& execution);
std::size_t gated_residual_features_workspace_bytes(const GatedResidualArguments& arguments, int threads);
Plan<GatedResidualArguments> plan_gated_residual_features(const GatedResidualArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_features(const GatedResidualArguments& arguments);

/// Reads d and the gate; writes z, p, y and what belongs to the last BatchNorm.
void gated_residual_projection(const GatedResidualArguments& arguments, const Execution& execution);
std::size_t gated_residual_projection_workspace_bytes(const GatedResidualArguments& arguments, int threads);
Plan<GatedResidualArguments> plan_gated_residual_projection(const GatedResidualArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_projection(const GatedResidualArguments& arguments);

struct GatedResidualBackwardArguments {
  /// As of an inverted residual without a gate. From half to half `grad_d` has the gradient at z; the half that reads
  /// it there leaves the one at the depthwise BatchNorm's output.
  InvertedResidualBackwardArguments block;
  ConstTensorView gate, z;
  TensorView grad_gate;       ///< [N, E, 1, 1] the second half's; null data: not wanted
  ConstTensorView grad_mean;  ///< [N, E, 1, 1] the first half's
};

/// Of the second half, which backward begins with: the gradients of project_weight, project_bn, z and the gate.
void gated_residual_projection_backward(const GatedResidualBackwardArguments& arguments, const Execution& execution);
std::size_t gated_residual_projection_backward_workspace_bytes(const GatedResidualBackwardArguments& arguments,
                                                               int threads);
Plan<GatedResidualBackwardArguments> plan_gated_residual_projection_backward(
    const GatedResidualBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_projection_backward(const GatedResidualBackwardArguments& arguments);

/// Of the first half: all others.
void gated_residual_features_backward(const GatedResidualBackwardArguments& arguments, const Execution& execution);
std::size_t gated_residual_features_backward_workspace_bytes(const GatedResidualBackwardArguments& arguments,
                                                             int threads);
Plan<GatedResidualBackwardArguments> plan_gated_residual_features_backward(
    const GatedResidualBackwardArguments& arguments, int threads);
std::vector<Candidate> explain_gated_residual_features_backward(const GatedResidualBackwardArguments& arguments);

}  // namespace fusedsc
