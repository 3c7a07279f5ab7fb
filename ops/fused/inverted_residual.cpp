#include "fusedsc/fused/inverted_residual.h"

#include "fusedsc/common/clear.h"
#include "fusedsc/fused/batch_norm_seam.h"
#include "fusedsc/fused/inverted_residual_checks.h"
#include "fusedsc/fused/inverted_residual_composed.h"
#include "fusedsc/runtime/checks.h"

namespace fusedsc {
namespace {

constexpr const char* kForward = "inverted_residual";
constexpr const char* kBackward = "inverted_residual_backward";

std::span<const Implementation<InvertedResidualArguments>> forward_implementations() {
  static const Implementation<InvertedResidualArguments> list[] = {inverted_residual_composed()};
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
    if (bn->invstd) clear_statistics(bn->mean, bn->variance, bn->invstd, bn->eps);
  }
}

void clear_results(const InvertedResidualBackwardArguments& wanted) {
  for (const TensorView* tensor :
       {&wanted.grad_x, &wanted.grad_expand_weight, &wanted.grad_dw_weight, &wanted.grad_project_weight}) {
    clear(*tensor);
  }
  for (const BatchNormGradients* bn : {&wanted.grad_expand_bn, &wanted.grad_dw_bn, &wanted.grad_project_bn}) {
    clear(bn->weight);
    clear(bn->bias);
  }
}

}  // namespace

void inverted_residual(const InvertedResidualArguments& arguments, const Execution& execution) {
  check_problem(arguments);
  check_memory(arguments);
  check_execution(execution, inverted_residual_workspace_bytes(arguments, execution.threads));
  if (arguments.y.elements() == 0) return clear_results(arguments);
  choose(kForward, forward_implementations(), arguments).run(arguments, execution);
}

std::size_t inverted_residual_workspace_bytes(const InvertedResidualArguments& arguments, int threads) {
  check_threads(threads);
  check_problem(arguments);
  if (arguments.y.elements() == 0) return 0;
  return choose(kForward, forward_implementations(), arguments).workspace_bytes(arguments, threads);
}

std::vector<Candidate> explain_inverted_residual(const InvertedResidualArguments& arguments) {
  check_problem(arguments);
  return explain(forward_implementations(), arguments);
}

void inverted_residual_backward(const InvertedResidualBackwardArguments& arguments, const Execution& execution) {
  check_problem(arguments);
  check_memory(arguments);
  check_execution(execution, inverted_residual_backward_workspace_bytes(arguments, execution.threads));
  if (arguments.grad_y.elements() == 0) return clear_results(arguments);
  choose(kBackward, backward_implementations(), arguments).run(arguments, execution);
}

std::size_t inverted_residual_backward_workspace_bytes(const InvertedResidualBackwardArguments& arguments,
                                                       int threads) {
  check_threads(threads);
  check_problem(arguments);
  if (arguments.grad_y.elements() == 0) return 0;
  return choose(kBackward, backward_implementations(), arguments).workspace_bytes(arguments, threads);
}

std::vector<Candidate> explain_inverted_residual_backward(const InvertedResidualBackwardArguments& arguments) {
  check_problem(arguments);
  return explain(backward_implementations(), arguments);
}

}  // namespace fusedsc
