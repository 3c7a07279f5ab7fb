#include "fusedsc/fused/inverted_residual.h"

#include "fusedsc/fused/inverted_residual_checks.h"
#include "fusedsc/fused/inverted_residual_composed.h"
#include "fusedsc/fused/inverted_residual_inference.h"
#include "fusedsc/fused/normalised_tensor.h"
#include "fusedsc/runtime/operator.h"

namespace fusedsc {
namespace {

std::span<const Implementation<InvertedResidualArguments>> forward_implementations() {
  static const Implementation<InvertedResidualArguments> list[] = {inverted_residual_inference(),
                                                                   inverted_residual_composed()};
  return list;
}

std::span<const Implementation<InvertedResidualBackwardArguments>> backward_implementations() {
  static const Implementation<InvertedResidualBackwardArguments> list[] = {inverted_residual_backward_composed()};
  return list;
}
/// What a batch without images leaves behind.
void clear_results(const InvertedResidualArguments& block) {
  if (!block.training) return;
  for (const BatchNormParameters* bn : {&block.expand_bn, &block.dw_bn, &block.project_bn}) {
    if (bn->invstd) clear(*bn);
  }
}

void clear_results(const InvertedResidualBackwardArguments& wanted) {
  for (const TensorView* tensor :
       {&wanted.grad_x, &wanted.grad_expand_weight, &wanted.grad_dw_weight, &wanted.grad_project_weight}) {
    clear(*tensor);
  }
  for (const BatchNormGradients* bn : {&wanted.grad_expand_bn, &wanted.grad_dw_bn, &wanted.grad_project_bn}) {
    clear(*bn);
  }
}

bool is_empty(const InvertedResidualArguments& block) {
  return block.x.device == Device::cpu && block.y.elements() == 0;
}

bool is_empty(const InvertedResidualBackwardArguments& block) {
  return block.forward.x.device == Device::cpu && block.grad_y.elements() == 0;
}

constexpr Operator<InvertedResidualArguments> kForward{
    .name = "inverted_residual",
    .implementations = forward_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

constexpr Operator<InvertedResidualBackwardArguments> kBackward{
    .name = "inverted_residual_backward",
    .implementations = backward_implementations,
    .check_problem = check_problem,
    .check_memory = check_memory,
    .is_empty = is_empty,
    .clear_results = clear_results,
};

}  // namespace

void inverted_residual(const InvertedResidualArguments& block, const Execution& execution) {
  run(kForward, block, execution);
}

std::size_t inverted_residual_workspace_bytes(const InvertedResidualArguments& block, int threads) {
  return plan(kForward, block, threads).workspace_bytes;
}

Plan<InvertedResidualArguments> plan_inverted_residual(const InvertedResidualArguments& block, int threads) {
  return plan(kForward, block, threads);
}

std::vector<Candidate> explain_inverted_residual(const InvertedResidualArguments& block) {
  return explain(kForward, block);
}

void inverted_residual_backward(const InvertedResidualBackwardArguments& block, const Execution& execution) {
  run(kBackward, block, execution);
}

std::size_t inverted_residual_backward_workspace_bytes(const InvertedResidualBackwardArguments& block, int threads) {
  return plan(kBackward, block, threads).workspace_bytes;
}

Plan<InvertedResidualBackwardArguments> plan_inverted_residual_backward(const InvertedResidualBackwardArguments& block,
                                                                        int threads) {
  return plan(kBackward, block, threads);
}

std::vector<Candidate> explain_inverted_residual_backward(const InvertedResidualBackwardArguments& block) {
  return explain(kBackward, block);
}

}  // namespace fusedsc
