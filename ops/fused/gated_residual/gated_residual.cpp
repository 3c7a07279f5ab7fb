#include "fusedsc/fused/gated_residual.h"

#include "fusedsc/fused/gated_residual/gated_residual_checks.h"
#include "fusedsc/fused/gated_residual/gated_residual_composed.h"
#include "fusedsc/fused/normalised_tensor.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

using Arguments = GatedResidualArguments;
using BackwardArguments = GatedResidualBackwardArguments;

std::span<const Implementation<Arguments>> features_implementations() {
  static const Implementation<Arguments> list[] = {gated_residual_features_composed()};
  return list;
}

std::span<const Implementation<Arguments>> projection_implementations() {
  static const Implementation<Arguments> list[] = {gated_residual_projection_composed()};
  return list;
}

std::span<const Implementation<BackwardArguments>> projection_backward_implementations() {
  static const Implementation<BackwardArguments> list[] = {gated_residual_projection_backward_composed()};
  return list;
}

std::span<const Implementation<BackwardArguments>> features_backward_implementations() {
  static const Implementation<BackwardArguments> list[] = {gated_residual_features_backward_composed()};
  return list;
}

bool is_empty(const Arguments& gated) { return gated.block.x.device == Device::cpu && gated.block.y.elements() == 0; }

bool is_empty(const BackwardArguments& wanted) {
  return wanted.block.forward.x.device == Device::cpu && wanted.block.grad_y.elements() == 0;
}

// What a batch without images leaves behind.

void clear_features(const Arguments& gated) {
  if (!gated.block.training) return;
  if (gated.block.expand_weight) clear(gated.block.expand_bn);
  clear(gated.block.dw_bn);
}

void clear_projection(const Arguments& gated) {
  if (gated.block.training) clear(gated.block.project_bn);
}

void clear_projection_gradients(const BackwardArguments& wanted) {
  clear(wanted.block.grad_project_weight);
  clear(wanted.block.grad_project_bn);
}

void clear_features_gradients(const BackwardArguments& wanted) {
  clear(wanted.block.grad_expand_weight);
  clear(wanted.block.grad_dw_weight);
  clear(wanted.block.grad_expand_bn);
  clear(wanted.block.grad_dw_bn);
}

constexpr Operator<Arguments> kFeatures{
    .name = "gated_residual_features",
    .implementations = features_implementations,
    .check_problem = check_features_problem,
    .check_memory = check_features_memory,
    .is_empty = is_empty,
    .clear_results = clear_features,
};

constexpr Operator<Arguments> kProjection{
    .name = "gated_residual_projection",
    .implementations = projection_implementations,
    .check_problem = check_projection_problem,
    .check_memory = check_projection_memory,
    .is_empty = is_empty,
    .clear_results = clear_projection,
};

constexpr Operator<BackwardArguments> kProjectionBackward{
    .name = "gated_residual_projection_backward",
    .implementations = projection_backward_implementations,
    .check_problem = check_projection_problem,
    .check_memory = check_projection_memory,
    .is_empty = is_empty,
    .clear_results = clear_projection_gradients,
};

constexpr Operator<BackwardArguments> kFeaturesBackward{
    .name = "gated_residual_features_backward",
    .implementations = features_backward_implementations,
    .check_problem = check_features_problem,
    .check_memory = check_features_memory,
    .is_empty = is_empty,
    .clear_results = clear_features_gradients,
};

}  // namespace

FUSEDSC_LISTED_OPERATOR(gated_residual_features, GatedResidualArguments, kFeatures)
FUSEDSC_LISTED_OPERATOR(gated_residual_projection, GatedResidualArguments, kProjection)
FUSEDSC_LISTED_OPERATOR(gated_residual_projection_backward, GatedResidualBackwardArguments, kProjectionBackward)
FUSEDSC_LISTED_OPERATOR(gated_residual_features_backward, GatedResidualBackwardArguments, kFeaturesBackward)

}  // namespace fusedsc
